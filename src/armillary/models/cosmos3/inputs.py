"""A small forward of the Cosmos 3 transformer, with every kind of token that a config has heads for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT, _SOUND, _ACTIONS = 7, 5, 3
_GRID = (3, 2, 3)
"""Latent frames and patches: the first frame is given, the others are noisy."""


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; odd lengths everywhere."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    frames, height, width = _GRID
    patches = frames * height * width
    noisy = (frames - 1) * height * width
    length = _TEXT + patches
    more: dict[str, Any] = {}
    if config["sound_gen"]:
        more |= _items("sound", noise(config["sound_dim"], _SOUND), length, _SOUND)
        length += _SOUND
    if config["action_gen"]:
        more |= _items("action", noise(_ACTIONS, config["action_dim"]), length, _ACTIONS)
        more["action_domain_ids"] = [torch.tensor([2])]
        length += _ACTIONS
    return {
        "input_ids": torch.arange(_TEXT) * 3,
        "text_indexes": torch.arange(_TEXT),
        "position_ids": torch.arange(length).expand(3, -1),
        "und_len": _TEXT,
        "sequence_length": length,
        # one row short of whole patches, which the class pads
        "vision_tokens": [noise(1, config["latent_channel"], frames, 2 * height - 1, 2 * width)],
        "vision_token_shapes": [_GRID],
        "vision_sequence_indexes": torch.arange(_TEXT, _TEXT + patches),
        "vision_mse_loss_indexes": torch.arange(_TEXT + height * width, _TEXT + patches),
        "vision_timesteps": torch.full((noisy,), 700.0),
        "vision_noisy_frame_indexes": [torch.arange(1, frames)],
        **more,
    }


def _items(kind: str, tokens: Any, start: int, length: int) -> dict[str, Any]:
    import torch

    rows = torch.arange(start, start + length)
    given = {
        "tokens": [tokens],
        "token_shapes": [(length, 1, 1)],
        "sequence_indexes": rows,
        "mse_loss_indexes": rows,
        "timesteps": torch.full((length,), 700.0),
        "noisy_frame_indexes": [torch.arange(length)],
    }
    return {f"{kind}_{name}": value for name, value in given.items()}
