"""Mistakes that a sharded model could have. The parity tests must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from armillary.parallel.mesh import Mesh
from armillary.parallel.tensor import sharding_of, take_ranges


def swap_key_value_heads(model: Any, mesh: Mesh) -> None:
    """The last rank has its K/V heads in the wrong order, so that queries meet others' keys and values."""
    if mesh.tp.rank == mesh.tp.size - 1:
        for layer in model.layers:
            for projection in (layer.self_attn.add_k_proj, layer.self_attn.add_v_proj):
                for parameter in projection.parameters():
                    parameter.copy_(parameter.roll(layer.self_attn.head_dim, 0))


def take_another_copy(model: Any, mesh: Mesh) -> None:
    """Where K/V heads are copied, neighbours have each other's head."""
    attention = model.layers[0].self_attn
    for projection in (attention.to_k, attention.to_v):
        whole = mesh.tp.all_gather(projection.weight, [len(projection.weight)] * mesh.tp.size, dim=0)
        rank = (mesh.tp.rank + mesh.tp.size // 2) % mesh.tp.size
        projection.weight.copy_(whole.chunk(mesh.tp.size)[rank])


def add_the_bias_on_every_rank(model: Any, mesh: Mesh) -> None:
    """One layer's bias is inside the sum and not after it."""

    def forward(linear: Any, x: torch.Tensor) -> torch.Tensor:
        return mesh.tp.all_reduce(F.linear(x, linear.weight, linear.bias))

    linear = model.layers[-1].self_attn.to_add_out
    linear.forward = partial(forward, linear)


def skip_a_reduce(model: Any, mesh: Mesh) -> None:
    """One layer's parts are not summed, so that every rank goes on with its own."""
    linear = model.layers[-1].mlp_moe_gen.down_proj
    linear.forward = partial(F.linear, weight=linear.weight, bias=linear.bias)


def look_up_the_next_row(model: Any, mesh: Mesh) -> None:
    """The last rank's words are off by one."""
    if mesh.tp.rank == mesh.tp.size - 1:
        weight = model.embed_tokens.weight
        weight.copy_(weight.roll(1, 0))


def cut_fused_heads_as_features(model: Any, mesh: Mesh) -> None:
    """Each rank takes every n-th feature of a query projection in place of its block of heads."""
    projection = model.layers[0].self_attn.add_q_proj
    whole = mesh.tp.all_gather(projection.weight, [len(projection.weight)] * mesh.tp.size, dim=0)
    ranges = [(i, i + 1) for i in range(mesh.tp.rank, len(whole), mesh.tp.size)]
    projection.weight.copy_(take_ranges(whole, 0, ranges))


FAULTS: Mapping[str, Callable[[Any, Mesh], None]] = {
    fault.__name__: fault
    for fault in (
        swap_key_value_heads,
        add_the_bias_on_every_rank,
        skip_a_reduce,
        look_up_the_next_row,
        cut_fused_heads_as_features,
        take_another_copy,
    )
}


def plant(fault: str, model: Any, mesh: Mesh) -> None:
    """Make the mistake called `fault`; none for an empty name."""
    assert sharding_of(model), "a fault is planted in a sharded model"
    if fault:
        with torch.no_grad():
            FAULTS[fault](model, mesh)
