"""Stable Diffusion 3 and 3.5: two streams that attend jointly, in 3.5 some blocks with a second attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Optional, PackedColwise

_BLOCK = "transformer_blocks.*"
_FUSED = Optional(PackedColwise([1, 1, 1]))  # there after `fuse_qkv_projections()`

PLAN = ParallelPlan(
    {
        # one row a prompt: gathering it costs little, and these are a quarter of the weights
        f"{_BLOCK}.norm1.linear": Colwise(gather=True),
        f"{_BLOCK}.norm1_context.linear": Colwise(gather=True),
        **{f"{_BLOCK}.attn.{name}": "colwise" for name in ("to_q", "to_k", "to_v")},
        **{f"{_BLOCK}.attn.add_{name}_proj": "colwise" for name in "qkv"},
        f"{_BLOCK}.attn.to_qkv": _FUSED,
        f"{_BLOCK}.attn.to_added_qkv": _FUSED,
        f"{_BLOCK}.attn.to_out.0": "rowwise",
        # the last block leaves the prompt as it is
        f"{_BLOCK}.attn.to_add_out": Optional("rowwise"),
        f"{_BLOCK}.ff.net.0.proj": "colwise",
        f"{_BLOCK}.ff.net.2": "rowwise",
        f"{_BLOCK}.ff_context.net.0.proj": Optional("colwise"),
        f"{_BLOCK}.ff_context.net.2": Optional("rowwise"),
        # the blocks of `dual_attention_layers`
        **{f"{_BLOCK}.attn2.{name}": Optional("colwise") for name in ("to_q", "to_k", "to_v")},
        f"{_BLOCK}.attn2.to_qkv": _FUSED,
        f"{_BLOCK}.attn2.to_out.0": Optional("rowwise"),
    },
    source="armillary.models.sd3",
)
DEFAULTS: Mapping[str, Any] = {
    "patch_size": 2,
    "in_channels": 16,
    "num_attention_heads": 18,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 12,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 10,
    "pos_embed_max_size": 8,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "3": _TINY,
    "3.5": {**_TINY, "qk_norm": "rms_norm"},
    "3.5-dual-attention": {**_TINY, "qk_norm": "rms_norm", "dual_attention_layers": [0, 1]},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return attention(f"{_BLOCK}.attn", *sizes), attention(f"{_BLOCK}.attn2", *sizes)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    patch = config["patch_size"]
    picture = (size.height // patch) * (size.width // patch)
    both = picture + size.text
    added = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_added_qkv", "attn.to_add_out")
    return Cost(
        rows={
            "proj_out": picture,
            "context_embedder": size.text,
            _BLOCK: picture,
            **{f"{_BLOCK}.{name}": size.text for name in ("ff_context", *added)},
            **{f"{_BLOCK}.{norm}.linear": 1 for norm in ("norm1", "norm1_context")},
        },
        attentions=(Attention(f"{_BLOCK}.attn", both, both), Attention(f"{_BLOCK}.attn2", picture, picture)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, config["in_channels"], 6, 10),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "pooled_projections": noise(2, config["pooled_projection_dim"]),
        "timestep": torch.tensor([700.0, 300.0]),
    }
