"""FLUX.2: FLUX's two kinds of blocks, gated MLPs, and single-stream blocks with QKV and MLP in one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Optional, PackedColwise, PackedRowwise

_TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"
_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")
"""Each for all blocks of its kind."""

PLAN = ParallelPlan(
    {
        **{f"{name}.linear": MODULATION for name in _MODULATIONS},
        **attention_entries(f"{_TWO}.attn", added=True),
        **{f"{_TWO}.{ff}.linear_in": PackedColwise([1, 1]) for ff in ("ff", "ff_context")},
        **{f"{_TWO}.{ff}.linear_out": "rowwise" for ff in ("ff", "ff_context")},
        # a config may have no blocks of the second kind; the parts follow from its mlp_ratio, see `fused`
        f"{_ONE}.attn.to_qkv_mlp_proj": Optional(PackedColwise()),
        f"{_ONE}.attn.to_out": Optional(PackedRowwise()),
    },
    source="armillary.models.flux2",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 48,
    "attention_head_dim": 128,
    "mlp_ratio": 3.0,
    "guidance_embeds": True,
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
    "timestep_guidance_channels": 16,
    "axes_dims_rope": [2, 2, 2, 2],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "guidance": _TINY,
    "no-guidance": {**_TINY, "guidance_embeds": False},
    "no-single-blocks": {**_TINY, "num_single_layers": 0},
    "wider-mlp": {**_TINY, "mlp_ratio": 3.5},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    single = attention(
        f"{_ONE}.attn",
        *sizes,
        outputs={"to_qkv_mlp_proj": ("query", "key_value", "key_value", None, None)},
        inputs={"to_out": ("query", None)},
        # its processor takes the parts' proportions from `inner_dim` beside `mlp_hidden_dim`: both stay whole
        counts={"heads": "query"},
    )
    return attention(f"{_TWO}.attn", *sizes), single


def fused(config: Mapping[str, Any]) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
    """See `Family.fused`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    mlp = int(width * config["mlp_ratio"])
    return {
        f"{_ONE}.attn.to_qkv_mlp_proj": {0: (width, width, width, mlp, mlp)},
        f"{_ONE}.attn.to_out": {1: (width, mlp)},
    }


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; latents are packed two by two before the model sees them."""
    picture = (size.height // 2) * (size.width // 2)
    both = picture + size.text
    return Cost(
        rows={
            "x_embedder": picture,
            "proj_out": picture,
            "context_embedder": size.text,
            _TWO: picture,
            **text_rows(_TWO, size.text, "ff_context", "attn.to_added_qkv"),
            _ONE: both,
        },
        attentions=(Attention(f"{_TWO}.attn", both, both), Attention(f"{_ONE}.attn", both, both)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    where = torch.cartesian_prod(torch.zeros(1), torch.arange(3.0), torch.arange(3.0), torch.zeros(1))
    return {
        "hidden_states": noise(2, 9, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "timestep": torch.tensor([0.5, 0.25]),
        "img_ids": where,
        "txt_ids": torch.cat([torch.zeros(5, 3), torch.arange(5.0)[:, None]], dim=1),
        "guidance": torch.tensor([4.0, 2.0]) if config["guidance_embeds"] else None,
    }
