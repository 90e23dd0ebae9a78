"""HunyuanVideo: FLUX's two kinds of blocks over video, and a refiner of the prompt before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, Optional, PackedRowwise

TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"
REFINER = "context_embedder.token_refiner.refiner_blocks.*"


def two_stream_entries() -> dict[str, Entry]:
    """The entries of the refiner and of the blocks with two streams; HunyuanVideo 1.5 has only these."""
    return {
        **attention_entries(f"{REFINER}.attn"),
        **feed_forward_entries(f"{REFINER}.ff"),
        f"{REFINER}.norm_out.linear": MODULATION,
        **attention_entries(f"{TWO}.attn", added=True),
        **feed_forward_entries(f"{TWO}.ff"),
        **feed_forward_entries(f"{TWO}.ff_context"),
        f"{TWO}.norm1.linear": MODULATION,
        f"{TWO}.norm1_context.linear": MODULATION,
    }


PLAN = ParallelPlan(
    {
        **two_stream_entries(),
        # a config may have no blocks of the second kind
        **optional(attention_entries(f"{_ONE}.attn", out=None)),
        f"{_ONE}.norm.linear": Optional(MODULATION),
        f"{_ONE}.proj_mlp": Optional("colwise"),
        # heads, then MLP; the parts follow from the mlp_ratio, see `fused`
        f"{_ONE}.proj_out": Optional(PackedRowwise()),
    },
    source="armillary.models.hunyuan_video",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "mlp_ratio": 4.0,
    "patch_size": 2,
    "patch_size_t": 1,
    "guidance_embeds": True,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "num_single_layers": 2,
    "num_refiner_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "patch_size": 1,
    "text_embed_dim": 12,
    "pooled_projection_dim": 10,
    "rope_axes_dim": [2, 2, 4],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "guidance": _TINY,
    "no-guidance": {**_TINY, "guidance_embeds": False},
    "token-replace": {**_TINY, "image_condition_type": "token_replace"},
    "latent-concat": {**_TINY, "image_condition_type": "latent_concat", "in_channels": 9},
    "no-single-blocks": {**_TINY, "num_single_layers": 0},
    "narrower-mlp": {**_TINY, "mlp_ratio": 2.5},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return tuple(attention(f"{block}.attn", *sizes) for block in (REFINER, TWO, _ONE))


def fused(config: Mapping[str, Any]) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
    """See `Family.fused`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    return {f"{_ONE}.proj_out": {1: (width, int(width * config["mlp_ratio"]))}}


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    video = size.frames // config["patch_size_t"]
    video *= (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    both = video + size.text
    return Cost(
        rows={**two_stream_rows(video, size.text), _ONE: both, f"{_ONE}.norm.linear": 1},
        attentions=(*two_stream_attentions(both, size.text), Attention(f"{_ONE}.attn", both, both)),
    )


def two_stream_rows(video: int, text: int) -> dict[str, int]:
    """Rows of the layers of the refiner and of the blocks with two streams."""
    return {
        "proj_out": video,
        "context_embedder": text,
        f"{REFINER}.norm_out": 1,
        TWO: video,
        **text_rows(TWO, text, "ff_context"),
        **{f"{TWO}.{name}.linear": 1 for name in ("norm1", "norm1_context")},
    }


def two_stream_attentions(both: int, text: int) -> tuple[Attention, ...]:
    """The attention of the refiner and of the blocks with two streams."""
    return Attention(f"{REFINER}.attn", text, text), Attention(f"{TWO}.attn", both, both)


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: prompts of two lengths."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, config["in_channels"], 2, 2, 3),
        "timestep": torch.tensor([700.0, 300.0]),
        "encoder_hidden_states": noise(2, 5, config["text_embed_dim"]),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "pooled_projections": noise(2, config["pooled_projection_dim"]),
        "guidance": torch.tensor([4000.0, 1000.0]) if config["guidance_embeds"] else None,
    }
