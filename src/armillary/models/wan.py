"""Wan 2.1 and 2.2: self-attention, cross-attention to the prompt (and a picture), MLP; norms across heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import attention_entries, feed_forward_entries, norm_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, NormSplit, Optional, PackedColwise


def block_entries(block: str) -> dict[str, Entry]:
    """The entries of the blocks under a plan key; Wan's control blocks have the same layers."""
    return {
        **attention_entries(f"{block}.attn1"),
        **norm_entries(f"{block}.attn1"),
        **attention_entries(f"{block}.attn2"),
        **norm_entries(f"{block}.attn2"),
        # image to video
        f"{block}.attn2.add_k_proj": Optional("colwise"),
        f"{block}.attn2.add_v_proj": Optional("colwise"),
        f"{block}.attn2.norm_added_k": Optional(NormSplit()),
        # after `fuse_qkv_projections()`
        f"{block}.attn2.to_kv": Optional(PackedColwise([1, 1])),
        f"{block}.attn2.to_added_kv": Optional(PackedColwise([1, 1])),
        **feed_forward_entries(f"{block}.ffn"),
    }


PLAN = ParallelPlan(block_entries("blocks.*"), source="armillary.models.wan")
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "patch_size": (1, 2, 2),
    "added_kv_proj_dim": None,
}
FP32_MODULES = ("rope", "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
IGNORED = ("norm_added_q",)
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TEXT = 512
"""Rows of the prompt; the class takes the rows before them for those of the picture."""
_TINY = {
    "num_layers": 2,
    "attention_head_dim": 12,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 10,
    "freq_dim": 16,
    "ffn_dim": 40,
    "rope_max_seq_len": 16,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-video": _TINY,
    "image-to-video": {**_TINY, "added_kv_proj_dim": 48, "image_dim": 14},
    "first-and-last-frame": {**_TINY, "added_kv_proj_dim": 48, "image_dim": 14, "pos_embed_seq_len": 6},
    "no-cross-norm": {**_TINY, "cross_attn_norm": False},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    return block_heads(config, "blocks.*")


def block_heads(config: Mapping[str, Any], block: str) -> tuple[HeadGroup, ...]:
    """Head facts of the blocks under a plan key."""
    return tuple(
        attention(
            f"{block}.{attn}",
            config["num_attention_heads"],
            config["attention_head_dim"],
            outputs={"norm_q": ("query",), "norm_k": ("key_value",), "norm_added_k": ("key_value",)},
        )
        for attn in ("attn1", "attn2")
    )


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    return block_cost(config, size, ("blocks.*",))


def block_cost(config: Mapping[str, Any], size: Size, blocks: tuple[str, ...]) -> Cost:
    """The cost of the blocks under some plan keys."""
    frames, height, width = config["patch_size"]
    video = (size.frames // frames) * (size.height // height) * (size.width // width)
    rows = {"proj_out": video, "condition_embedder.text_embedder": size.text}
    attentions = []
    for block in blocks:
        to_text = [f"{block}.attn2.{name}" for name in ("to_k", "to_v", "to_kv")]
        rows |= {block: video, **dict.fromkeys(to_text, size.text)}
        attentions += [
            Attention(f"{block}.attn1", video, video),
            Attention(f"{block}.attn2", video, size.text),
        ]
    return Cost(rows=rows, attentions=tuple(attentions))


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    given = {
        "hidden_states": noise(2, config["in_channels"], 2, 4, 6),
        "timestep": torch.tensor([700.0, 300.0]),
        "encoder_hidden_states": noise(2, _TEXT, config["text_dim"]),
    }
    if config.get("image_dim"):
        # the first and the last frame of one item stand for two items
        pictures = 4 if config.get("pos_embed_seq_len") else 2
        given["encoder_hidden_states_image"] = noise(pictures, 3, config["image_dim"])
    return given
