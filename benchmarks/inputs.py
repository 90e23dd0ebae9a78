"""The arguments of one denoising step of Cosmos 3, as the pipeline hands them to the transformer."""

from __future__ import annotations

import math
from typing import Any

import torch


def step_inputs(text: int, grid: tuple[int, int, int], vocab: int) -> dict[str, Any]:
    """A prompt of `text` random tokens and one video of `grid` (frames, height, width) patches, all noisy."""
    torch.manual_seed(1)
    frames, height, width = grid
    length = text + math.prod(grid)
    vision_indexes = torch.arange(text, length)
    return {
        "input_ids": torch.randint(vocab, (text,)),
        "text_indexes": torch.arange(text),
        "position_ids": torch.arange(length).expand(3, -1),
        "und_len": text,
        "sequence_length": length,
        "vision_tokens": [torch.randn(1, 48, frames, 2 * height, 2 * width)],
        "vision_token_shapes": [grid],
        "vision_sequence_indexes": vision_indexes,
        "vision_mse_loss_indexes": vision_indexes,
        "vision_timesteps": torch.full((math.prod(grid),), 500.0),
        "vision_noisy_frame_indexes": [torch.arange(frames)],
    }
