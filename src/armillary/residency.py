"""`Residency`: where the weights of a model live and when. Pure data; `parallel/residency.py` moves them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from armillary.errors import LayoutError, Problem

Elsewhere: TypeAlias = Literal["host", "disk"]
"""`host`: a copy of the rank's own ranges in host memory. `disk`: the checkpoint, read again."""


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Where the weights of a model's blocks live. The default keeps all of them on the device.

    Raises `LayoutError` for values that contradict each other.
    """

    offload: Elsewhere | Literal["auto"] | None = None
    """Layer-wise offload: blocks live here and stream through the device at every step."""
    prefetch: int = 1
    """Blocks that are read ahead of the one that is computed with."""
    resident_layers: int = 0
    """The first blocks, which stay on the device in spite of `offload`."""
    evict: Elsewhere | Literal["auto"] | None = None
    """Pathway eviction: what only the prompt needs lives here, and visits the device for a new prompt."""

    def __post_init__(self) -> None:
        problems = [
            Problem("residency", f"{name}={value!r} is no number of blocks", f"use {least} or more")
            for name, value, least in (
                ("prefetch", self.prefetch, 1),
                ("resident_layers", self.resident_layers, 0),
            )
            if not isinstance(value, int) or isinstance(value, bool) or value < least
        ]
        for name, place in (("offload", self.offload), ("evict", self.evict)):
            if place not in (None, "auto", "host", "disk"):
                fix = "use host, disk or auto"
                problems.append(Problem("residency", f"{name}={place!r} is no place for weights", fix))
        if not problems:
            problems += self._without_effect()
        if problems:
            raise LayoutError(problems)

    def _without_effect(self) -> list[Problem]:
        """A setting that would change nothing was meant to."""
        problems = []
        if self.prefetch != 1 and not self.moves:
            why = f"prefetch={self.prefetch} changes nothing while all weights stay on the device"
            problems.append(Problem("residency", why, "add offload or evict"))
        if self.resident_layers and self.offload is None:
            why = f"resident_layers={self.resident_layers} changes nothing without offload"
            problems.append(Problem("residency", why, "add offload"))
        return problems

    def on(self, device_type: str) -> Residency:
        """With "auto" settled: host memory for a device that has memory of its own; the CPU has none, so
        only the disk is elsewhere."""
        place: Elsewhere = "disk" if device_type == "cpu" else "host"
        return replace(
            self,
            offload=place if self.offload == "auto" else self.offload,
            evict=place if self.evict == "auto" else self.evict,
        )

    @property
    def moves(self) -> bool:
        """Whether any weight leaves the device at all."""
        return self.offload is not None or self.evict is not None
