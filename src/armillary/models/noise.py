"""Noise for the inputs and the weights of tiny models: the same numbers at every call."""

from __future__ import annotations

from typing import Any

import torch


class Noise:
    """Draws one float32 tensor after another, on the CPU, without touching torch's own random state."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)


@torch.no_grad()
def fill(model: Any, seed: int = 0) -> None:
    """Give every parameter weights under which a fault shows.

    Matrices keep the scale of what passes them, biases are as large as that, and what scales (a norm's
    weight) is near one: a bias added twice or a part left out is then far above any rounding.
    """
    noise = Noise(seed)
    for name, parameter in model.named_parameters():
        value = noise(*parameter.shape)
        if parameter.ndim > 1:
            value *= parameter[0].numel() ** -0.5
        elif name.endswith(".weight"):
            value = 1 + 0.3 * value
        parameter.copy_(value)
