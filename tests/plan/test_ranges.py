"""A dimension cut into ranges: even, uneven, packed and copied splits are only different ranges."""

import pytest
from hypothesis import given, settings, strategies as st

from armillary.plan.ranges import Segment, Shard, cut

SEGMENTS = st.lists(
    st.builds(
        Segment, units=st.integers(1, 24), unit=st.integers(1, 4), copies=st.booleans(), uneven=st.booleans()
    ),
    min_size=1,
    max_size=4,
)


def test_an_even_split_is_one_range_for_each_rank() -> None:
    assert cut(0, [Segment(units=8)], 4).pieces == (((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),))


def test_a_fused_dimension_gives_a_range_of_every_block() -> None:
    shard = cut(0, [Segment(units=4), Segment(units=4), Segment(units=8)], 2)
    assert shard.pieces == (((0, 2), (4, 6), (8, 12)), ((2, 4), (6, 8), (12, 16)))


def test_heads_stay_whole() -> None:
    assert cut(0, [Segment(units=4, unit=16)], 2).ranges(1) == ((32, 64),)


def test_one_head_goes_to_several_ranks_where_there_are_more_ranks() -> None:
    shard = cut(0, [Segment(units=2, unit=3, copies=True)], 4)
    assert shard.pieces == (((0, 3),), ((0, 3),), ((3, 6),), ((3, 6),))
    assert shard.copied


def test_the_first_ranks_get_what_is_left_over() -> None:
    shard = cut(0, [Segment(units=7, uneven=True)], 3)
    assert [shard.local_size(rank) for rank in range(3)] == [3, 2, 2]


def test_more_ranks_than_rows_leave_the_last_ones_without() -> None:
    shard = cut(0, [Segment(units=2, uneven=True)], 3)
    assert shard.pieces == (((0, 1),), ((1, 2),), ())


def test_ranges_that_touch_are_one_range() -> None:
    assert cut(0, [Segment(units=2), Segment(units=2)], 1).ranges(0) == ((0, 4),)


def test_only_the_cut_dimension_changes_in_the_local_shape() -> None:
    shard = Shard(dim=1, size=6, pieces=(((0, 1), (3, 4)), ((1, 3), (4, 6))))
    assert shard.local_shape((5, 6, 7), 0) == (5, 2, 7)
    assert shard.local_shape((5, 6, 7), 1) == (5, 4, 7)


@pytest.mark.parametrize(
    ("segment", "allowed"),
    [
        (Segment(units=6), [1, 2, 3, 6]),
        (Segment(units=6, copies=True), [1, 2, 3, 6, 12]),
        (Segment(units=6, uneven=True), list(range(1, 13))),
    ],
)
def test_a_segment_knows_the_degrees_it_allows(segment: Segment, allowed: list[int]) -> None:
    assert [tp for tp in range(1, 13) if segment.allows(tp)] == allowed


@settings(deadline=None)
@given(SEGMENTS, st.integers(1, 12))
def test_allowed_cuts_cover_every_feature_of_the_dimension(segments: list[Segment], tp: int) -> None:
    segments = [segment for segment in segments if segment.allows(tp)]
    shard = cut(0, segments, tp)
    seen = [
        feature for rank in range(tp) for start, stop in shard.ranges(rank) for feature in range(start, stop)
    ]
    assert set(seen) == set(range(shard.size))
    assert shard.copied == (len(seen) > shard.size)
    assert shard.size == sum(segment.units * segment.unit for segment in segments)


@settings(deadline=None)
@given(SEGMENTS, st.integers(1, 12))
def test_the_first_rank_has_as_many_units_as_any(segments: list[Segment], tp: int) -> None:
    for segment in segments:
        runs = [segment.run(rank, tp) for rank in range(tp)]
        assert segment.count(tp) == max(stop - start for start, stop in runs)
