"""MiniMax-H3: text, video and sound in one sequence; every layer modulated by timestep and modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry

_BLOCK, _REFINER = "transformer_blocks.*", "token_refiner.refiner_blocks.*"


def _entries(block: str) -> dict[str, Entry]:
    """The layers that the blocks of both kinds have."""
    return {**attention_entries(f"{block}.attn"), **feed_forward_entries(f"{block}.ff", gated=True)}


PLAN = ParallelPlan(
    {
        **_entries(_BLOCK),
        # one row for each noise level, and two fifths of the weights
        f"{_BLOCK}.adaln_proj.linear": MODULATION,
        # a config may have no refiner
        **optional(_entries(_REFINER)),
    },
    source="armillary.models.minimax_h3",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 56,
    "attention_head_dim": 128,
    "in_channels": 24,
    "audio_in_channels": 32,
    "patch_size": (1, 2, 2),
    "text_dim": 5120,
}
FP32_MODULES = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope")
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_attention_heads": 4,
    "attention_head_dim": 14,
    "hidden_size": 40,
    "num_layers": 2,
    "num_refiner_layers": 2,
    "ffn_dim": 48,
    "in_channels": 3,
    "audio_in_channels": 6,
    "text_dim": 10,
    "freq_dim": 16,
    "time_embed_hidden_dim": 24,
    "time_embed_dim": 20,
    "rope_freq_dim": 2,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "refiner": _TINY,
    "no-refiner": {**_TINY, "num_refiner_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return attention(f"{_BLOCK}.attn", *sizes), attention(f"{_REFINER}.attn", *sizes)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; without sound, whose rows are few beside those of the video."""
    frames, height, width = config["patch_size"]
    video = (size.frames // frames) * (size.height // height) * (size.width // width)
    packed = video + size.text
    return Cost(
        rows={
            "proj_in": video,
            "context_embedder": size.text,
            _REFINER: size.text,
            _BLOCK: packed,
            f"{_BLOCK}.adaln_proj": 1,
            "proj_out": packed,
            "audio_proj_out": packed,
        },
        attentions=(
            Attention(f"{_BLOCK}.attn", packed, packed),
            Attention(f"{_REFINER}.attn", size.text, size.text),
        ),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; text, a given frame, noisy ones and sound, each with its own noise level."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    text, given, noisy, audio = 5, 6, 6, 4
    video = given + noisy
    frames, height, width = config["patch_size"]
    rows = torch.arange(text + video + audio)
    return {
        "hidden_states": noise(1, video, config["in_channels"] * frames * height * width),
        "audio_hidden_states": noise(1, audio, config["audio_in_channels"]),
        "encoder_hidden_states": noise(1, text, config["text_dim"]),
        "timestep": torch.tensor([0.0, 0.5, 0.25]),
        "timestep_indices": torch.tensor([0] * (text + given) + [1] * noisy + [2] * audio),
        "token_tags": torch.tensor([1] * text + [0] * video + [2] * audio),
        "position_ids": torch.stack([rows // 6, rows // 3 % 2, rows % 3], dim=1),
        "video_indices": rows[text : text + video],
        "audio_indices": rows[text + video :],
        "text_indices": rows[:text],
    }
