"""The layout: how many devices each axis of the mesh has, and which degrees make sense together.

Pure data. What a *model* allows (heads, widths) is decided by `armillary.plan.resolve`; what a
*machine* allows (device count) by the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from armillary.errors import LayoutError, Problem


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The degrees of the mesh, outermost axis first; `tp` is innermost.

    Raises `LayoutError` with every problem at once when the degrees contradict each other.
    """

    AXES: ClassVar[tuple[str, ...]] = ("cfg", "ring", "gather", "ulysses", "tp")

    cfg: int = 1
    """Guidance parallelism: 2 puts the two branches of classifier-free guidance on two groups."""
    ring: int = 1
    """Context parallelism, keys and values passed round; excludes `gather`."""
    gather: int = 1
    """Context parallelism, query rows stay local, keys and values are gathered; any number."""
    ulysses: int = 1
    """Context parallelism, heads and sequence exchanged."""
    tp: int = 1
    """Tensor parallelism: the width of every layer is split."""

    def __post_init__(self) -> None:
        if problems := degree_problems(asdict(self)):
            raise LayoutError(problems)

    @property
    def degrees(self) -> dict[str, int]:
        """Axis name to degree, outermost first."""
        return {axis: getattr(self, axis) for axis in self.AXES}

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of all degrees."""
        return math.prod(self.degrees.values())

    def coordinate(self, position: int) -> dict[str, int]:
        """Mesh coordinate of the `position`-th rank of this layout's group, row-major, `tp` fastest."""
        if not 0 <= position < self.world_size:
            raise ValueError(f"position {position} is outside a layout of {self.world_size} ranks")
        coordinate: dict[str, int] = {}
        for axis in reversed(self.AXES):
            position, coordinate[axis] = divmod(position, self.degrees[axis])
        return {axis: coordinate[axis] for axis in self.AXES}

    def world_problems(self, available: int) -> list[Problem]:
        """Problems of putting this layout on `available` ranks; a smaller layout may use a subset."""
        if self.world_size <= available:
            return []
        return [
            Problem(
                rule="world-size",
                message=f"{self} needs {self.world_size} ranks and {available} are available",
                fix=f"start {self.world_size} ranks or lower a degree",
            )
        ]

    def __str__(self) -> str:
        used = [f"{axis}={degree}" for axis, degree in self.degrees.items() if degree > 1]
        return " x ".join(used) or "one rank"


def degree_problems(degrees: Mapping[str, object]) -> list[Problem]:
    """Every problem that the degrees have among themselves, before any model is known."""
    counts = {axis: degree for axis, degree in degrees.items() if _is_count(degree)}
    problems = [
        Problem(
            rule="degree-positive",
            message=f"{axis}={degree!r} is not a number of ranks",
            fix="use a whole number from 1 up",
        )
        for axis, degree in degrees.items()
        if axis not in counts
    ]
    if counts.get("cfg", 1) not in (1, 2):
        problems.append(
            Problem(
                rule="cfg-degree",
                message=f"cfg={counts['cfg']}, but guidance has two branches",
                fix="use cfg=1 or cfg=2",
            )
        )
    if counts.get("ring", 1) != 1 and counts.get("gather", 1) != 1:
        problems.append(
            Problem(
                rule="ring-or-gather",
                message=f"ring={counts['ring']} and gather={counts['gather']} both split the same keys",
                fix="use one of them and set the other to 1",
            )
        )
    return problems


def _is_count(degree: object) -> bool:
    return isinstance(degree, int) and not isinstance(degree, bool) and degree >= 1
