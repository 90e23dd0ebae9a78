"""Stable Diffusion 3 and 3.5: two streams that attend jointly; 3.5 adds norms and a second attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Optional

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        **attention_entries(f"{_BLOCK}.attn", added=True),
        # the last block does not go on with the text
        f"{_BLOCK}.attn.to_add_out": Optional("rowwise"),
        **optional(feed_forward_entries(f"{_BLOCK}.ff_context")),
        # 3.5 medium, in some blocks
        **optional(attention_entries(f"{_BLOCK}.attn2")),
        **feed_forward_entries(f"{_BLOCK}.ff"),
        f"{_BLOCK}.norm1.linear": MODULATION,
        f"{_BLOCK}.norm1_context.linear": MODULATION,
    },
    source="armillary.models.sd3",
)
DEFAULTS: Mapping[str, Any] = {"num_attention_heads": 18, "attention_head_dim": 64, "patch_size": 2}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "sample_size": 8,
    "pos_embed_max_size": 8,
    "joint_attention_dim": 12,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 10,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "3": _TINY,
    "3.5-large": {**_TINY, "qk_norm": "rms_norm"},
    "3.5-medium": {**_TINY, "qk_norm": "rms_norm", "dual_attention_layers": [0, 1]},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return attention(f"{_BLOCK}.attn", *sizes), attention(f"{_BLOCK}.attn2", *sizes)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    picture = (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    both = picture + size.text
    return Cost(
        rows={
            "proj_out": picture,
            "context_embedder": size.text,
            _BLOCK: picture,
            **text_rows(_BLOCK, size.text, "ff_context"),
            **{f"{_BLOCK}.{name}.linear": 1 for name in ("norm1", "norm1_context")},
        },
        attentions=(
            Attention(f"{_BLOCK}.attn", both, both),
            Attention(f"{_BLOCK}.attn2", picture, picture),
        ),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, config["in_channels"], 4, 6),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "pooled_projections": noise(2, config["pooled_projection_dim"]),
        "timestep": torch.tensor([700.0, 300.0]),
    }
