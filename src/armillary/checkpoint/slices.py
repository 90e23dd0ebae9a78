"""From a shard to bytes: ranges along one dimension become ranges of bytes of the stored tensor.

Pure arithmetic. Offsets count from the tensor's first byte; tensors are stored row-major.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""Half open, in elements of the split dimension: (start, stop)."""
Segment: TypeAlias = tuple[int, int]
"""A contiguous run of bytes: (offset, nbytes)."""


def local_shape(shape: Sequence[int], dim: int, ranges: Sequence[Range]) -> tuple[int, ...]:
    """Shape of the local tensor that holds `ranges` of dimension `dim`, one after another.

    A 0-D tensor has no dimension to cut: its only ranges are `[(0, 1)]` of dim 0.

    Raises:
        ValueError: a range reaches outside the dimension.
    """
    _check(shape, dim, ranges)
    if not shape:
        return ()
    return (*shape[:dim], sum(stop - start for start, stop in ranges), *shape[dim + 1 :])


def byte_ranges(shape: Sequence[int], itemsize: int, dim: int, ranges: Sequence[Range]) -> Iterator[Segment]:
    """The bytes of `ranges` of dimension `dim`, in the row-major order of the local tensor.

    Read one after another they fill a contiguous local tensor of `local_shape(shape, dim, ranges)`.
    Neighbours are joined, so that a split of dim 0 is one segment per range and a whole tensor one.

    Raises:
        ValueError: a range reaches outside the dimension.
    """
    rows = rows_of(shape, itemsize, dim, ranges)
    firsts = (number * rows.nbytes for number in range(rows.count))
    return _joined((first + offset, nbytes) for first in firsts for offset, nbytes in rows.runs)


@dataclass(frozen=True)
class Rows:
    """A stored tensor as equal rows of bytes, of each of which the same runs are wanted."""

    count: int
    nbytes: int
    """Of one row."""
    runs: tuple[Segment, ...]

    @property
    def wanted(self) -> int:
        """Bytes wanted of one row."""
        return sum(nbytes for _, nbytes in self.runs)


def rows_of(shape: Sequence[int], itemsize: int, dim: int, ranges: Sequence[Range]) -> Rows:
    """The same bytes as `byte_ranges`, as runs that repeat from row to row.

    Raises:
        ValueError: a range reaches outside the dimension.
    """
    _check(shape, dim, ranges)
    full_shape = tuple(shape) or (1,)
    element = prod(full_shape[dim + 1 :]) * itemsize
    runs = ((start * element, (stop - start) * element) for start, stop in ranges)
    return Rows(prod(full_shape[:dim]), full_shape[dim] * element, tuple(_joined(runs)))


def windows(segments: Iterable[Segment], limit: int) -> Iterator[list[Segment]]:
    """The same bytes in groups of exactly `limit` bytes (the last may be smaller)."""
    window: list[Segment] = []
    room = limit
    for offset, nbytes in segments:
        while nbytes >= room:
            window.append((offset, room))
            yield window
            offset, nbytes, window, room = offset + room, nbytes - room, [], limit
        if nbytes:
            window.append((offset, nbytes))
            room -= nbytes
    if window:
        yield window


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    first = end = 0
    for offset, nbytes in segments:
        if offset != end:
            if end > first:
                yield first, end - first
            first = offset
        end = offset + nbytes
    if end > first:
        yield first, end - first


def _check(shape: Sequence[int], dim: int, ranges: Sequence[Range]) -> None:
    full_shape = tuple(shape) or (1,)
    if not 0 <= dim < len(full_shape):
        raise ValueError(
            f"dimension {dim} of a tensor of shape {list(shape)}: count from 0 and stay below its rank"
        )
    for start, stop in ranges:
        if not 0 <= start <= stop <= full_shape[dim]:
            raise ValueError(f"range {start}:{stop} reaches outside dimension {dim} of shape {list(shape)}")
    if not shape and list(ranges) != [(0, 1)]:
        raise ValueError(f"ranges {list(ranges)} of a 0-D tensor: it is one element, (0, 1)")
