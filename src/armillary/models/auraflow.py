"""AuraFlow: blocks with two streams, then blocks with one; gated MLPs, norms without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, parse_entry

_TWO, _ONE = "joint_transformer_blocks.*", "single_transformer_blocks.*"


def _feed_forward_entries(path: str) -> dict[str, Entry]:
    styles = {"linear_1": "colwise", "linear_2": "colwise", "out_projection": "rowwise"}
    return {f"{path}.{name}": parse_entry(style) for name, style in styles.items()}


PLAN = ParallelPlan(
    {
        **attention_entries(f"{_TWO}.attn", added=True),
        **_feed_forward_entries(f"{_TWO}.ff"),
        **_feed_forward_entries(f"{_TWO}.ff_context"),
        f"{_TWO}.norm1.linear": MODULATION,
        f"{_TWO}.norm1_context.linear": MODULATION,
        # a config may have no blocks of the second kind
        **optional(
            {
                **attention_entries(f"{_ONE}.attn"),
                **_feed_forward_entries(f"{_ONE}.ff"),
                f"{_ONE}.norm1.linear": MODULATION,
            }
        ),
    },
    source="armillary.models.auraflow",
)
DEFAULTS: Mapping[str, Any] = {"num_attention_heads": 12, "attention_head_dim": 256, "patch_size": 2}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_mmdit_layers": 2,
    "num_single_dit_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "sample_size": 8,
    "pos_embed_max_size": 64,
    "joint_attention_dim": 12,
    "caption_projection_dim": 32,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-image": _TINY,
    "no-single-blocks": {**_TINY, "num_single_dit_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return attention(f"{_TWO}.attn", *sizes), attention(f"{_ONE}.attn", *sizes)


_REGISTERS = 8
"""Learned rows before those of the prompt."""


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    picture = (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    text = size.text + _REGISTERS
    both = picture + text
    return Cost(
        rows={
            "pos_embed.proj": picture,
            "proj_out": picture,
            "context_embedder": size.text,
            _TWO: picture,
            **text_rows(_TWO, text, "ff_context"),
            _ONE: both,
            **{f"{block}.linear": 1 for block in (f"{_TWO}.norm1", f"{_TWO}.norm1_context", f"{_ONE}.norm1")},
        },
        attentions=(Attention(f"{_TWO}.attn", both, both), Attention(f"{_ONE}.attn", both, both)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, config["in_channels"], 4, 6),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "timestep": torch.tensor([0.5, 0.25]),
    }
