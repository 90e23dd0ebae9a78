"""CogVideoX and CogVideoX 1.5: prompt and video in one sequence, each with its own half of a modulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Optional, PackedColwise

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        # one row a prompt: gathering it costs little
        f"{_BLOCK}.norm1.linear": Colwise(gather=True),
        f"{_BLOCK}.norm2.linear": Colwise(gather=True),
        **{f"{_BLOCK}.attn1.{name}": "colwise" for name in ("to_q", "to_k", "to_v")},
        # there after `fuse_qkv_projections()`
        f"{_BLOCK}.attn1.to_qkv": Optional(PackedColwise([1, 1, 1])),
        f"{_BLOCK}.attn1.to_out.0": "rowwise",
        f"{_BLOCK}.ff.net.0.proj": "colwise",
        f"{_BLOCK}.ff.net.2": "rowwise",
    },
    source="armillary.models.cogvideox",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 30,
    "attention_head_dim": 64,
    "in_channels": 16,
    "patch_size": 2,
    "patch_size_t": None,
    "text_embed_dim": 4096,
    "ofs_embed_dim": None,
    "use_rotary_positional_embeddings": False,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_FRAMES, _HEIGHT, _WIDTH, _TEXT = 2, 4, 6, 5
_TINY = {
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 12,
    "text_embed_dim": 10,
    "sample_frames": _FRAMES,
    "sample_height": _HEIGHT,
    "sample_width": _WIDTH,
    "temporal_compression_ratio": 1,
    "max_text_seq_length": _TEXT,
}
_ROTARY = {**_TINY, "use_rotary_positional_embeddings": True}
_NEWER = {**_ROTARY, "patch_size_t": 2, "patch_bias": False}
TINY: Mapping[str, Mapping[str, Any]] = {
    "2b": _TINY,
    "5b": _ROTARY,
    "5b-image-to-video": {**_ROTARY, "use_learned_positional_embeddings": True},
    "1.5": _NEWER,
    "1.5-image-to-video": {**_NEWER, "ofs_embed_dim": 12},
    "no-norm-weights-nor-biases": {**_TINY, "norm_elementwise_affine": False, "attention_bias": False},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    return (attention(f"{_BLOCK}.attn1", config["num_attention_heads"], config["attention_head_dim"]),)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    video = _rows(config, size.frames, size.height, size.width)
    both = video + size.text
    return Cost(
        rows={
            "patch_embed.proj": video,
            "patch_embed.text_proj": size.text,
            "proj_out": video,
            _BLOCK: both,
            **{f"{_BLOCK}.{norm}.linear": 1 for norm in ("norm1", "norm2")},
        },
        attentions=(Attention(f"{_BLOCK}.attn1", both, both),),
    )


def _rows(config: Mapping[str, Any], frames: int, height: int, width: int) -> int:
    patch = config["patch_size"]
    return (frames // (config["patch_size_t"] or 1)) * (height // patch) * (width // patch)


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    given: dict[str, Any] = {
        "hidden_states": noise(2, _FRAMES, config["in_channels"], _HEIGHT, _WIDTH),
        "encoder_hidden_states": noise(2, _TEXT, config["text_embed_dim"]),
        "timestep": torch.tensor([700, 300]),
    }
    if config["ofs_embed_dim"]:
        given["ofs"] = torch.tensor([2.0, 1.0])
    if config["use_rotary_positional_embeddings"]:
        # the pipeline makes them; the model takes any angles
        rows = _rows(config, _FRAMES, _HEIGHT, _WIDTH)
        angles = noise(rows, config["attention_head_dim"] // 2).repeat_interleave(2, dim=1)
        given["image_rotary_emb"] = (angles.cos(), angles.sin())
    return given
