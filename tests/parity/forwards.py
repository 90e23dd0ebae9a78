"""One forward of the transformer with every kind of token that it has heads for."""

from __future__ import annotations

from typing import Any

import torch

TEXT = 7
GRID = (3, 2, 3)
"""Latent frames and patches: the first frame is given, the others are noisy."""
SOUND = 5
ACTIONS = 3


@torch.no_grad()
def run_forward(model: Any) -> list[torch.Tensor]:
    """Predictions for vision, then sound and actions where the model has them; odd sequence lengths."""
    frames, height, width = GRID
    patches = frames * height * width
    given: dict[str, Any] = {}
    start = TEXT + patches
    for kind, length in (("sound", SOUND), ("action", ACTIONS)):
        if model.config[f"{kind}_gen"]:
            given |= _of_kind(model, kind, start, length)
            start += length
    noisy = (frames - 1) * height * width
    out = model(
        input_ids=torch.arange(TEXT) * 3,
        text_indexes=torch.arange(TEXT),
        position_ids=torch.arange(start).expand(3, -1),
        und_len=TEXT,
        sequence_length=start,
        vision_tokens=[noise(model, 1, model.config.latent_channel, frames, 2 * height - 1, 2 * width)],
        vision_token_shapes=[GRID],
        vision_sequence_indexes=torch.arange(TEXT, TEXT + patches),
        vision_mse_loss_indexes=torch.arange(TEXT + height * width, TEXT + patches),
        vision_timesteps=torch.full((noisy,), 700.0),
        vision_noisy_frame_indexes=[torch.arange(1, frames)],
        **given,
        return_dict=False,
    )
    made = [tensor for predictions in out if predictions for tensor in predictions]
    assert len(made) == 1 + model.config.sound_gen + model.config.action_gen
    return made


def noise(model: Any, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(model.dtype)


def _of_kind(model: Any, kind: str, start: int, length: int) -> dict[str, Any]:
    shape = (model.config.sound_dim, length) if kind == "sound" else (length, model.config.action_dim)
    given = {
        "tokens": [noise(model, *shape)],
        "token_shapes": [(length, 1, 1)],
        "sequence_indexes": torch.arange(start, start + length),
        "mse_loss_indexes": torch.arange(start, start + length),
        "timesteps": torch.full((length,), 700.0),
        "noisy_frame_indexes": [torch.arange(length)],
    }
    domain = {"action_domain_ids": [torch.tensor([2])]} if kind == "action" else {}
    return {f"{kind}_{name}": value for name, value in given.items()} | domain
