"""The arithmetic of a shard: a dimension, cut into ranges, one list of ranges per tp rank.

Even, packed, head-aware, replicated and uneven splits are all the same thing here: a dimension is a
row of segments, each segment is a number of units (features, heads), and a rank gets a run of units
of every segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""Half open: (start, stop)."""


@dataclass(frozen=True)
class Segment:
    """A run of a dimension that is split on its own: `units` units of `unit` features each."""

    units: int
    unit: int = 1
    copies: bool = False
    """Fewer units than ranks: each unit goes to several ranks (key/value heads)."""
    uneven: bool = False
    """Units may be left over: the first ranks get one more."""

    def allows(self, tp: int) -> bool:
        """Whether `tp` ranks can share this segment by its rules."""
        return self.uneven or self.units % tp == 0 or (self.copies and tp % self.units == 0)

    def run(self, rank: int, tp: int) -> Range:
        """The units of one rank, as a half-open range of unit numbers."""
        if self.copies and tp > self.units:
            owner = rank * self.units // tp
            return owner, owner + 1
        each, left_over = divmod(self.units, tp)
        start = rank * each + min(rank, left_over)
        return start, start + each + (rank < left_over)

    def count(self, tp: int) -> int:
        """Units of the first rank; no rank has more."""
        start, stop = self.run(0, tp)
        return stop - start


@dataclass(frozen=True)
class Shard:
    """How one parameter is split: for every tp rank a list of ranges along one dimension.

    `size` is the full (global) size of dimension `dim`. Where `copied`, some ranges belong to
    several ranks; otherwise the ranges of all ranks cover the dimension exactly once.
    """

    dim: int
    size: int
    pieces: tuple[tuple[Range, ...], ...]
    copied: bool = False

    def ranges(self, tp_rank: int) -> tuple[Range, ...]:
        """Ranges of one rank, in the order in which they lie in its local tensor."""
        return self.pieces[tp_rank]

    def local_size(self, tp_rank: int) -> int:
        """Size of `dim` on one rank."""
        return sum(stop - start for start, stop in self.pieces[tp_rank])

    def local_bytes(self, nbytes: int, tp_rank: int) -> int:
        """Bytes that one rank holds of a parameter that has `nbytes` in all."""
        return nbytes // self.size * self.local_size(tp_rank)

    def local_shape(self, shape: Sequence[int], tp_rank: int) -> tuple[int, ...]:
        """The shape one rank holds of a parameter whose full shape is `shape`."""
        return (*shape[: self.dim], self.local_size(tp_rank), *shape[self.dim + 1 :])


def cut(dim: int, segments: Sequence[Segment], tp: int) -> Shard:
    """Cut dimension `dim`, made of `segments` one after another, for `tp` ranks.

    The segments must allow `tp`; ranges that touch are joined.
    """
    starts = [0, *accumulate(segment.units * segment.unit for segment in segments)]
    pieces = []
    for rank in range(tp):
        ranges: list[Range] = []
        for start, segment in zip(starts, segments, strict=False):
            first, last = segment.run(rank, tp)
            ranges.append((start + first * segment.unit, start + last * segment.unit))
        pieces.append(_joined(ranges))
    copied = any(segment.copies and tp > segment.units for segment in segments)
    return Shard(dim=dim, size=starts[-1], pieces=tuple(pieces), copied=copied)


def _joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for start, stop in ranges:
        if start == stop:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
