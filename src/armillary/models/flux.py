"""FLUX.1: two streams that attend jointly, then one stream with attention and MLP side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, Optional, PackedRowwise

_TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"


def block_entries() -> dict[str, Entry]:
    """The entries of both kinds of blocks, without what modulates them; Chroma's are the same."""
    return {
        **attention_entries(f"{_TWO}.attn", added=True),
        **feed_forward_entries(f"{_TWO}.ff"),
        **feed_forward_entries(f"{_TWO}.ff_context"),
        # a config may have no blocks of the second kind
        **optional(attention_entries(f"{_ONE}.attn", out=None)),
        f"{_ONE}.proj_mlp": Optional("colwise"),
        # its input is the heads, then the MLP, which is four times as wide in every config
        f"{_ONE}.proj_out": Optional(PackedRowwise([1, 4])),
    }


PLAN = ParallelPlan(
    {
        **block_entries(),
        f"{_TWO}.norm1.linear": MODULATION,
        f"{_TWO}.norm1_context.linear": MODULATION,
        f"{_ONE}.norm.linear": Optional(MODULATION),
    },
    source="armillary.models.flux",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "guidance_embeds": False,
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
    "pooled_projection_dim": 10,
    "axes_dims_rope": [2, 2, 4],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "guidance": {**_TINY, "guidance_embeds": True},
    "no-guidance": {**_TINY, "guidance_embeds": False},
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
    return Cost(
        rows={
            "x_embedder": picture,
            "proj_out": picture,
            "context_embedder": size.text,
            _TWO: picture,
            **text_rows(_TWO, size.text, "norm1_context", "ff_context", "attn.to_added_qkv"),
            _ONE: both,
            **{f"{block}.linear": 1 for block in (f"{_TWO}.norm1", f"{_TWO}.norm1_context", f"{_ONE}.norm")},
        },
        attentions=(Attention(f"{_TWO}.attn", both, both), Attention(f"{_ONE}.attn", both, both)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    grid = torch.cartesian_prod(torch.zeros(1), torch.arange(3.0), torch.arange(3.0))
    return {
        "hidden_states": noise(2, 9, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "pooled_projections": noise(2, config["pooled_projection_dim"]),
        "timestep": torch.tensor([0.5, 0.25]),
        "img_ids": grid,
        "txt_ids": torch.zeros(5, 3),
        "guidance": torch.tensor([4.0, 2.0]) if config["guidance_embeds"] else None,
    }
