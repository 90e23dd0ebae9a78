"""Chroma: FLUX.1 whose modulations all come from one small network instead of a layer in every block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Optional, PackedColwise, PackedRowwise

_TWO, _ONE, _MODULATIONS = "transformer_blocks.*", "single_transformer_blocks.*", "distilled_guidance_layer"
_FUSED = Optional(PackedColwise([1, 1, 1]))  # there after `fuse_qkv_projections()`

PLAN = ParallelPlan(
    {
        **{f"{_TWO}.attn.{name}": "colwise" for name in ("to_q", "to_k", "to_v")},
        **{f"{_TWO}.attn.add_{name}_proj": "colwise" for name in "qkv"},
        f"{_TWO}.attn.to_qkv": _FUSED,
        f"{_TWO}.attn.to_added_qkv": _FUSED,
        f"{_TWO}.attn.to_out.0": "rowwise",
        f"{_TWO}.attn.to_add_out": "rowwise",
        **{f"{_TWO}.{ff}.net.0.proj": "colwise" for ff in ("ff", "ff_context")},
        **{f"{_TWO}.{ff}.net.2": "rowwise" for ff in ("ff", "ff_context")},
        # a config may have no blocks of the second kind
        **{f"{_ONE}.attn.{name}": Optional("colwise") for name in ("to_q", "to_k", "to_v")},
        f"{_ONE}.attn.to_qkv": _FUSED,
        f"{_ONE}.proj_mlp": Optional("colwise"),
        # its input is the heads, then the MLP, which is four times as wide in every config
        f"{_ONE}.proj_out": Optional(PackedRowwise([1, 4])),
        # few rows, but a fortieth of the weights
        f"{_MODULATIONS}.layers.*.linear_1": "colwise",
        f"{_MODULATIONS}.layers.*.linear_2": "rowwise",
    },
    source="armillary.models.chroma",
)
DEFAULTS: Mapping[str, Any] = {
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 4096,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "joint_attention_dim": 12,
    "axes_dims_rope": [2, 2, 4],
    "approximator_num_channels": 8,
    "approximator_hidden_dim": 20,
    "approximator_layers": 2,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "both-kinds-of-blocks": _TINY,
    "no-single-blocks": {**_TINY, "num_single_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return attention(f"{_TWO}.attn", *sizes), attention(f"{_ONE}.attn", *sizes)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; latents are packed two by two before the model sees them."""
    picture = (size.height // 2) * (size.width // 2)
    both = picture + size.text
    text = ("ff_context", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
    return Cost(
        rows={
            "x_embedder": picture,
            "proj_out": picture,
            "context_embedder": size.text,
            _MODULATIONS: 3 * config["num_single_layers"] + 12 * config["num_layers"] + 2,
            _TWO: picture,
            **{f"{_TWO}.{name}": size.text for name in (*text, "attn.to_added_qkv", "attn.to_add_out")},
            _ONE: both,
        },
        attentions=(Attention(f"{_TWO}.attn", both, both), Attention(f"{_ONE}.attn", both, both)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; the second prompt is shorter than the first."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    grid = torch.cartesian_prod(torch.zeros(1), torch.arange(3.0), torch.arange(3.0))
    shown = torch.ones(2, 5 + 9, dtype=torch.bool)
    shown[1, 3:5] = False
    return {
        "hidden_states": noise(2, 9, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "timestep": torch.tensor([0.7, 0.3]),
        "img_ids": grid,
        "txt_ids": torch.zeros(5, 3),
        "attention_mask": shown,
    }
