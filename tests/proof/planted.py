"""Mistakes that a layout could have, planted on the ranks by `after_load`; the proof must find each."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from armillary.parallel.context import Context
from armillary.parallel.mesh import Mesh


def nothing(model: Any, mesh: Mesh) -> None:
    """No mistake at all."""


def group_heads_wrongly(model: Any, mesh: Mesh) -> None:
    """Queries meet the keys and values of their neighbours' group: the heads are grouped another way."""
    for layer in model.layers[1:]:
        keys = layer.self_attn.add_k_proj
        keys.weight.copy_(keys.weight.roll(layer.self_attn.head_dim, 0))


def give_heads_in_another_order(model: Any, mesh: Mesh) -> None:
    """The attention of one layer gives a rank's heads in another order; no weight shows it."""
    attention = model.layers[1].self_attn
    attention.to_add_out.register_forward_pre_hook(lambda _, args: (args[0].roll(attention.head_dim, -1),))


def add_a_bias_twice(model: Any, mesh: Mesh) -> None:
    """The bias of a row-split layer is inside the sum: every rank adds it."""

    def forward(linear: Any, x: torch.Tensor) -> torch.Tensor:
        return mesh.tp.all_reduce(F.linear(x, linear.weight, linear.bias))

    linear = model.layers[0].self_attn.to_add_out
    linear.forward = partial(forward, linear)


def miss_a_reduce(model: Any, mesh: Mesh) -> None:
    """The parts of one sum are not added up."""
    linear = model.layers[1].mlp_moe_gen.down_proj
    linear.forward = partial(F.linear, weight=linear.weight, bias=linear.bias)


def scale_one_layer(model: Any, mesh: Mesh) -> None:
    """One layer is wrong by three percent, which bfloat16's tolerance of the outputs lets pass."""
    model.layers[1].self_attn.to_add_out.register_forward_hook(lambda _, __, out: out * 1.03)


def change_a_replica(model: Any, mesh: Mesh) -> None:
    """One rank has another value in a parameter that all ranks hold in full."""
    if mesh.everyone.rank == mesh.everyone.size - 1:
        model.layers[1].input_layernorm_moe_gen.weight[3] += 0.01


def change_a_buffer(model: Any, mesh: Mesh) -> None:
    """One rank has a buffer that differs in its last bit, too little to show in any output."""
    if mesh.everyone.rank == 0:
        last = model.rotary_emb.inv_freq[-1:]
        last.copy_(torch.nextafter(last, 2 * last))


def count_text_once_per_rank(model: Any, mesh: Mesh) -> None:
    """A query sees the prompt's keys as often as there are ranks that hold them."""
    prefill = model._run_decoder_stack.__self__
    prefill.context = _CountsTextPerRank(**vars(prefill.context))


class _CountsTextPerRank(Context):
    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        prefix: Any,
        *others: Any,
        **named: Any,
    ) -> torch.Tensor:
        keys, values = (torch.cat([part] * self.size) for part in prefix)
        return super().attention(query, key, value, (keys, values), *others, **named)
