"""A few Euler steps of any model that a family describes, and what came out in one list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

STEP = 0.3


@torch.no_grad()
def denoise(model: Any, inputs: Mapping[str, Any], steps: int = 3) -> list[torch.Tensor]:
    """The outputs of all steps; one step where the model does not predict something like its latents."""
    given = dict(inputs)
    name = "x" if "x" in given else "hidden_states"
    outputs = []
    for _ in range(steps):
        made = model(**given)
        outputs += flat(made)
        following = _step(given.get(name), made[0])
        if following is None:
            break
        given[name] = following
    return outputs


def flat(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for one in value or () for tensor in flat(one)]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in another dtype, wherever they are."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: cast(one, dtype) for key, one in value.items()}
    return type(value)(cast(one, dtype) for one in value) if isinstance(value, tuple | list) else value


def distance(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """The largest relative L2 of corresponding tensors."""
    assert len(some) == len(others) > 0
    return max(
        float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(some, others, strict=True)
    )


def _step(latents: Any, velocity: Any) -> Any:
    """Latents after one step, None where the two do not match."""
    if isinstance(latents, list) and isinstance(velocity, list):
        taken = [_step(one, part) for one, part in zip(latents, velocity, strict=True)]
        return None if any(one is None for one in taken) else taken
    if not (isinstance(latents, torch.Tensor) and isinstance(velocity, torch.Tensor)):
        return None
    return latents - STEP * velocity if latents.shape == velocity.shape else None
