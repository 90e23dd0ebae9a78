"""Ranges of a dimension as byte ranges, held against numpy's slicing."""

from itertools import chain, pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, strategies as st

from armillary.checkpoint.slices import Range, byte_ranges, local_shape, windows


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], int, list[Range]]:
    shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(shape) - 1))
    ends = st.integers(0, shape[dim])
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=4))
    return tuple(shape), dim, [(min(pair), max(pair)) for pair in pairs]


@given(cuts(), st.sampled_from(["u1", "i2", "f4", "c8"]))
def test_gathered_bytes_are_numpys_slices_put_together(
    cut: tuple[tuple[int, ...], int, list[Range]], code: str
) -> None:
    shape, dim, ranges = cut
    array = np.arange(prod(shape)).astype(code).reshape(shape)
    index = [i for start, stop in ranges for i in range(start, stop)]
    expected = np.take(array, np.array(index, dtype=int), axis=dim)
    stored = array.tobytes()
    found = b"".join(stored[at : at + n] for at, n in byte_ranges(shape, array.itemsize, dim, ranges))
    assert local_shape(shape, dim, ranges) == expected.shape
    assert found == expected.tobytes()


@given(cuts())
def test_segments_are_not_empty_and_neighbours_are_joined(
    cut: tuple[tuple[int, ...], int, list[Range]],
) -> None:
    shape, dim, ranges = cut
    segments = list(byte_ranges(shape, 2, dim, ranges))
    assert all(nbytes > 0 for _, nbytes in segments)
    assert all(at + n != after for (at, n), (after, _) in pairwise(segments))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50)), max_size=20), st.integers(1, 40))
def test_windows_hold_the_same_bytes_in_groups_of_the_limit(
    segments: list[tuple[int, int]], limit: int
) -> None:
    groups = list(windows(segments, limit))
    bytes_of = [[at + i for at, n in group for i in range(n)] for group in groups]
    assert list(chain(*bytes_of)) == [at + i for at, n in segments for i in range(n)]
    assert all(len(found) == limit for found in bytes_of[:-1])
    assert all(0 < len(found) <= limit for found in bytes_of[-1:])


def test_a_whole_tensor_is_one_segment_along_any_dimension() -> None:
    assert [list(byte_ranges((3, 4, 5), 4, dim, [(0, (3, 4, 5)[dim])])) for dim in range(3)] == [
        [(0, 240)]
    ] * 3


def test_rows_that_touch_across_their_ends_are_joined() -> None:
    assert list(byte_ranges((2, 8), 1, 1, [(0, 2), (6, 8)])) == [(0, 2), (6, 4), (14, 2)]


def test_a_0d_tensor_is_its_one_element() -> None:
    assert list(byte_ranges((), 4, 0, [(0, 1)])) == [(0, 4)]
    assert local_shape((), 0, [(0, 1)]) == ()


@pytest.mark.parametrize(
    ("shape", "dim", "ranges"),
    [((4,), 0, [(0, 5)]), ((4,), 0, [(-1, 2)]), ((4,), 0, [(3, 2)]), ((4,), 1, [(0, 1)]), ((), 0, [])],
)
def test_ranges_outside_the_tensor_are_refused(shape: tuple[int, ...], dim: int, ranges: list[Range]) -> None:
    with pytest.raises(ValueError, match=r"range|dimension"):
        byte_ranges(shape, 1, dim, ranges)
