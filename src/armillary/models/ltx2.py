"""LTX-2: LTX's blocks for video and for audio, and attention from each to the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import attention_entries, feed_forward_entries, norm_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, Optional

_BLOCK = "transformer_blocks.*"
_VIDEO = ("attn1", "attn2")
_AUDIO = ("audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")
"""Attention between the two has the audio's heads, in both directions."""


def _entries(attn: str) -> dict[str, Entry]:
    # one gate a head, so a part of the gates belongs to the same part of the heads
    gate: dict[str, Entry] = {f"{attn}.to_gate_logits": Optional("colwise")}
    return attention_entries(attn) | norm_entries(attn) | gate


PLAN = ParallelPlan(
    {
        **{key: e for name in (*_VIDEO, *_AUDIO) for key, e in _entries(f"{_BLOCK}.{name}").items()},
        **feed_forward_entries(f"{_BLOCK}.ff"),
        **feed_forward_entries(f"{_BLOCK}.audio_ff"),
    },
    source="armillary.models.ltx2",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 32,
    "attention_head_dim": 128,
    "audio_num_attention_heads": 32,
    "audio_attention_head_dim": 64,
    "audio_in_channels": 128,
    "rope_type": "interleaved",
    "cross_attn_mod": False,
    "audio_cross_attn_mod": False,
    "use_prompt_embeddings": True,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "cross_attention_dim": 64,
    "audio_in_channels": 4,
    "audio_out_channels": 4,
    "audio_num_attention_heads": 4,
    "audio_attention_head_dim": 8,
    "audio_cross_attention_dim": 32,
    "caption_channels": 12,
}
_GATED = {
    "gated_attn": True,
    "audio_gated_attn": True,
    "cross_attn_mod": True,
    "audio_cross_attn_mod": True,
    "perturbed_attn": True,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "interleaved": _TINY,
    "split": {**_TINY, "rope_type": "split"},
    "gated": {**_TINY, **_GATED, "rope_type": "split"},
    "no-mlp-bias": {**_TINY, "ff_bias": False, "audio_ff_bias": False},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the rotary angles differ from head to head."""
    # (rows, features of all heads), or (heads, rows, features of one)
    dim = -1 if config["rope_type"] == "interleaved" else 1
    video = config["num_attention_heads"], config["attention_head_dim"]
    audio = config["audio_num_attention_heads"], config["audio_attention_head_dim"]
    return tuple(
        attention(
            f"{_BLOCK}.{name}",
            *(video if name in _VIDEO else audio),
            outputs={"norm_q": ("query",), "norm_k": ("key_value",)},
            arguments={"query_rotary_emb": dim, "key_rotary_emb": dim},
        )
        for name in (*_VIDEO, *_AUDIO)
    )


_LATENTS_PER_FRAME = 8
"""Audio latents beside one frame of video latents: 25 a second beside 24 / 8 = 3."""


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; the audio is as long as the video."""
    video = size.frames * size.height * size.width
    audio = size.frames * _LATENTS_PER_FRAME
    rows = {
        "proj_in": video,
        "proj_out": video,
        "audio_proj_in": audio,
        "audio_proj_out": audio,
        _BLOCK: video,
    }
    attentions = []
    for name, queries, keys in (
        ("attn1", video, video),
        ("attn2", video, size.text),
        ("audio_attn1", audio, audio),
        ("audio_attn2", audio, size.text),
        ("audio_to_video_attn", video, audio),
        ("video_to_audio_attn", audio, video),
    ):
        rows |= {f"{_BLOCK}.{name}": queries, f"{_BLOCK}.{name}.to_k": keys, f"{_BLOCK}.{name}.to_v": keys}
        attentions.append(Attention(f"{_BLOCK}.{name}", queries, keys))
    return Cost(rows={**rows, f"{_BLOCK}.audio_ff": audio}, attentions=tuple(attentions))


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: prompts of two lengths."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    lengths = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    given = {
        "hidden_states": noise(2, 2 * 2 * 3, config["in_channels"]),
        "audio_hidden_states": noise(2, 7, config["audio_in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["caption_channels"]),
        "audio_encoder_hidden_states": noise(2, 5, config["caption_channels"]),
        "timestep": torch.tensor([700.0, 300.0]),
        "encoder_attention_mask": lengths,
        "audio_encoder_attention_mask": lengths,
        "num_frames": 2,
        "height": 2,
        "width": 3,
        "audio_num_frames": 7,
    }
    if config["cross_attn_mod"] or config["audio_cross_attn_mod"]:
        given["sigma"] = torch.tensor([0.7, 0.3])
    return given
