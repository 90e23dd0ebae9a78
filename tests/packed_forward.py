"""One forward of the Cosmos 3 transformer over any number of items of every kind, of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Grid = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A prompt and the items that are generated with it, all of them noisy."""

    ids: Sequence[int] = (5, 9, 2, 7, 7, 1, 30)
    shift: int = 0
    """Of all positions."""
    grids: Sequence[Grid] = ((3, 2, 3),)
    """Latent frames and patches of each vision item."""
    sounds: Sequence[int] = ()
    actions: Sequence[int] = ()
    timestep: float = 700.0
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Rows of the generation stream."""
        return sum(t * h * w for t, h, w in self.grids) + sum(self.sounds) + sum(self.actions)

    @torch.no_grad()
    def run(self, model: Any) -> list[torch.Tensor]:
        """Every item's prediction: vision, then sound, then actions."""
        out = model(**self.inputs(model), return_dict=False)
        return [tensor for predictions in out for tensor in predictions or ()]

    def inputs(self, model: Any) -> dict[str, Any]:
        """The arguments of `forward`."""
        text = len(self.ids)
        total = text + self.tokens
        items = _Items(model, text, self.timestep, torch.Generator().manual_seed(self.seed))
        latents = [(model.config.latent_channel, t, 2 * h, 2 * w) for t, h, w in self.grids]
        given = items.of("vision", self.grids, latents)
        if self.sounds:
            shapes = [(model.config.sound_dim, length) for length in self.sounds]
            given |= items.of("sound", [(length, 1, 1) for length in self.sounds], shapes)
        if self.actions:
            shapes = [(length, model.config.action_dim) for length in self.actions]
            given |= items.of("action", [(length, 1, 1) for length in self.actions], shapes)
            given["action_domain_ids"] = [torch.tensor([2 + i]) for i in range(len(self.actions))]
        return {
            "input_ids": torch.tensor(self.ids),
            "text_indexes": torch.arange(text),
            "position_ids": (torch.arange(total) + self.shift).expand(3, -1),
            "und_len": text,
            "sequence_length": total,
            **given,
        }


@dataclass
class _Items:
    model: Any
    start: int
    timestep: float
    generator: torch.Generator

    def of(self, kind: str, grids: Sequence[Grid], shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for the items of one kind, which lie behind those before."""
        length = sum(t * h * w for t, h, w in grids)
        rows = torch.arange(self.start, self.start + length)
        self.start += length
        return {
            f"{kind}_tokens": list(self._noise(shapes)),
            f"{kind}_token_shapes": list(grids),
            f"{kind}_sequence_indexes": rows,
            f"{kind}_mse_loss_indexes": rows,
            f"{kind}_timesteps": torch.full((length,), self.timestep),
            f"{kind}_noisy_frame_indexes": [torch.arange(t) for t, _, _ in grids],
        }

    def _noise(self, shapes: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
        for shape in shapes:
            yield torch.randn(tuple(shape), generator=self.generator).to(self.model.dtype)


def relative_distance(parts: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> float:
    """The largest relative L2 distance of a part from its counterpart."""
    pairs = list(zip(parts, whole, strict=True))
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)
