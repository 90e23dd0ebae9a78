"""LTX-Video: self-attention, cross-attention to the prompt, MLP; norms and rotary angles across heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import attention_entries, feed_forward_entries, norm_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        **attention_entries(f"{_BLOCK}.attn1"),
        **norm_entries(f"{_BLOCK}.attn1"),
        **attention_entries(f"{_BLOCK}.attn2"),
        **norm_entries(f"{_BLOCK}.attn2"),
        **feed_forward_entries(f"{_BLOCK}.ff"),
    },
    source="armillary.models.ltx",
)
DEFAULTS: Mapping[str, Any] = {"num_attention_heads": 32, "attention_head_dim": 64, "patch_size": 1}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "cross_attention_dim": 32,
    "caption_channels": 12,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-video": _TINY,
    "no-bias": {**_TINY, "attention_bias": False, "attention_out_bias": False},
    "affine-norms": {**_TINY, "norm_elementwise_affine": True},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the rotary angles differ from head to head."""
    return tuple(
        attention(
            f"{_BLOCK}.{name}",
            config["num_attention_heads"],
            config["attention_head_dim"],
            outputs={"norm_q": ("query",), "norm_k": ("key_value",)},
            arguments={"image_rotary_emb": -1},
        )
        for name in ("attn1", "attn2")
    )


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    video = size.frames * size.height * size.width
    return Cost(
        rows={
            "proj_in": video,
            "proj_out": video,
            "caption_projection": size.text,
            _BLOCK: video,
            **{f"{_BLOCK}.attn2.{name}": size.text for name in ("to_k", "to_v")},
        },
        attentions=(
            Attention(f"{_BLOCK}.attn1", video, video),
            Attention(f"{_BLOCK}.attn2", video, size.text),
        ),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: prompts of two lengths."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, 2 * 2 * 3, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["caption_channels"]),
        "timestep": torch.tensor([700.0, 300.0]),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "num_frames": 2,
        "height": 2,
        "width": 3,
        "rope_interpolation_scale": (1 / 25, 32, 32),
    }
