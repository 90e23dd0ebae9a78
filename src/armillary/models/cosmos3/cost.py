"""What a Cosmos 3 generation costs: its rows, and the live tensors at the peak of a step. Pure arithmetic.

Sizes are elements unless they say bytes. Names: `rows` are those of one rank, `all_rows` those of the whole
sequence; `query`, `key_value` and `mlp` are the widths that one tp rank has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from armillary.models.cost import Attention, Cost, Size

SOUND_LATENTS_PER_SECOND = 25
"""`sound_latent_fps` of the published configs."""

_FP32 = 4
_TIME_CHANNELS = 256


def latent_size(width: int, height: int, frames: int, *, spatial: int, temporal: int) -> tuple[int, int, int]:
    """Frames, height and width of the latents, from pixels and the VAE's factors."""
    return (frames - 1) // temporal + 1, height // spatial, width // spatial


def generation_rows(
    config: Mapping[str, Any], latents: tuple[int, int, int], sound_seconds: float = 0
) -> int:
    """Rows of the generation stream: a patch of latents each (odd sides are padded), and sound latents."""
    patch = int(config.get("latent_patch_size") or 2)
    frames, height, width = latents
    return frames * ceil(height / patch) * ceil(width / patch) + ceil(
        sound_seconds * SOUND_LATENTS_PER_SECOND
    )


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; of the stock forward, which computes both pathways."""
    rows = generation_rows(config, (size.frames, size.height, size.width))
    attention = "layers.*.self_attn"
    understanding = [f"{attention}.{name}" for name in ("to_q", "to_k", "to_v", "to_out")]
    return Cost(
        rows={
            "layers.*": rows,
            **dict.fromkeys([*understanding, "layers.*.mlp"], size.text),
            **dict.fromkeys(["proj_in", "proj_out", "time_embedder"], rows),
        },
        attentions=(Attention(attention, rows, rows + size.text), Attention(attention, size.text, size.text)),
    )


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One generation layer as one rank computes it."""

    rows: int
    all_rows: int
    prompt: int
    hidden: int
    query: int
    key_value: int
    mlp: int
    head_dim: int
    gated: bool
    itemsize: int


def step_bytes(shape: LayerShape) -> int:
    """Live tensors of one forward at its peak, beyond weights and stored prompts.

    The stock `forward` keeps the embedded sequence, the embedded rows and their timestep embeddings until it
    returns; on top of them come one layer's own tensors, or those of embedding the timesteps in float32.
    """
    return _kept_bytes(shape) + max(_layer_bytes(shape), _timestep_bytes(shape))


def _kept_bytes(s: LayerShape) -> int:
    sequence = (s.prompt + s.all_rows) * s.hidden
    rows_and_timesteps = 2 * s.all_rows * s.hidden
    rotary = 2 * (s.prompt + s.all_rows) * s.head_dim
    return (sequence + rows_and_timesteps + rotary) * s.itemsize


def _layer_bytes(s: LayerShape) -> int:
    """The largest of a layer's three moments: rotating keys, attending, and the MLP's product.

    A layer's input lives as long as it does; queries, keys, values and the attention's output too.
    """
    heads = s.query + 2 * s.key_value
    rotating = 2 * s.hidden + heads + s.query + 4 * max(s.query, s.key_value)
    gathered = 2 * s.key_value * (s.all_rows + s.prompt) / max(s.rows, 1)
    attending = s.hidden + heads + gathered + s.query
    mlp = 3 * s.hidden + heads + s.query + (3 if s.gated else 2) * s.mlp
    return round(s.rows * max(rotating, attending, mlp) * s.itemsize)


def _timestep_bytes(s: LayerShape) -> int:
    """Sines and cosines, and the two layers of the time embedder, which stay in float32."""
    return s.all_rows * (_TIME_CHANNELS + 2 * s.hidden) * _FP32
