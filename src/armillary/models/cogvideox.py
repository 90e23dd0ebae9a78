"""CogVideoX 1 and 1.5: text and video in one sequence, with modulations of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        **attention_entries(f"{_BLOCK}.attn1"),
        **feed_forward_entries(f"{_BLOCK}.ff"),
        f"{_BLOCK}.norm1.linear": MODULATION,
        f"{_BLOCK}.norm2.linear": MODULATION,
    },
    source="armillary.models.cogvideox",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 30,
    "attention_head_dim": 64,
    "patch_size": 2,
    "patch_size_t": None,
    "ofs_embed_dim": None,
    "use_rotary_positional_embeddings": False,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 10,
    "text_embed_dim": 12,
    "sample_width": 6,
    "sample_height": 4,
    "sample_frames": 5,
    "max_text_seq_length": 5,
}
_ROTARY = {**_TINY, "use_rotary_positional_embeddings": True}
_NEWER = {**_ROTARY, "patch_size_t": 2, "patch_bias": False}
TINY: Mapping[str, Mapping[str, Any]] = {
    "2b": _TINY,
    "2b-no-biases": {**_TINY, "attention_bias": False, "norm_elementwise_affine": False},
    "5b": _ROTARY,
    "5b-image-to-video": {**_ROTARY, "use_learned_positional_embeddings": True, "in_channels": 8},
    "1.5": _NEWER,
    "1.5-image-to-video": {**_NEWER, "ofs_embed_dim": 10},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    return (attention(f"{_BLOCK}.attn1", config["num_attention_heads"], config["attention_head_dim"]),)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    video = size.frames // (config["patch_size_t"] or 1)
    video *= (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    both = video + size.text
    return Cost(
        rows={"proj_out": video, _BLOCK: both, **{f"{_BLOCK}.{norm}": 1 for norm in ("norm1", "norm2")}},
        attentions=(Attention(f"{_BLOCK}.attn1", both, both),),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    frames, height, width = 2, 4, 6
    given: dict[str, Any] = {
        "hidden_states": noise(2, frames, config["in_channels"], height, width),
        "encoder_hidden_states": noise(2, 5, config["text_embed_dim"]),
        "timestep": torch.tensor([700, 300]),
    }
    if config["use_rotary_positional_embeddings"]:
        rows = frames // (config["patch_size_t"] or 1) * (height // 2) * (width // 2)
        angles = noise(rows, config["attention_head_dim"])
        given["image_rotary_emb"] = (angles.cos(), angles.sin())
    if config["ofs_embed_dim"]:
        given["ofs"] = torch.tensor([2.0, 2.0])
    return given
