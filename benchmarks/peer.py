"""diffusers' own tensor parallelism for Cosmos 3 on the CPU, as the benchmarks' peer.

What diffusers 0.42.1 lacks for it is given inside a `with` block of a benchmark and nowhere else: the CPU as
a device, a `_tp_plan` of the class, and (by `use_local_heads`) the head counts that its processor uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

_COLWISE = (
    *("self_attn.to_q", "self_attn.to_k", "self_attn.to_v", "mlp.gate_proj", "mlp.up_proj"),
    *("self_attn.add_q_proj", "self_attn.add_k_proj", "self_attn.add_v_proj"),
    *("mlp_moe_gen.gate_proj", "mlp_moe_gen.up_proj"),
)
_ROWWISE = ("self_attn.to_out", "mlp.down_proj", "self_attn.to_add_out", "mlp_moe_gen.down_proj")

PEER_PLAN = {
    **{f"layers.*.{path}": "colwise" for path in _COLWISE},
    **{f"layers.*.{path}": "rowwise" for path in _ROWWISE},
}
"""All that diffusers' styles can split: they know no embeddings."""


@contextmanager
def patched_diffusers() -> Iterator[None]:
    """Within the block, diffusers splits `Cosmos3OmniTransformer` over CPU ranks."""
    from diffusers import Cosmos3OmniTransformer

    with (
        patch("diffusers.hooks.tensor_parallel._SUPPORTED_TP_DEVICES", ("cpu",)),
        patch("torch.accelerator.device_count", lambda: 1),
        patch.object(Cosmos3OmniTransformer, "_tp_plan", PEER_PLAN, create=True),
    ):
        yield


def use_local_heads(model: Any, degree: int) -> None:
    """Make the stock attention processor reshape by the heads of one rank of `degree`."""
    for layer in model.layers:
        layer.self_attn.num_attention_heads //= degree
        layer.self_attn.num_key_value_heads //= degree
