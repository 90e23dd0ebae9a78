"""A layout: degrees, their product, where a rank sits in it, and every contradiction at once."""

import re

import pytest
from hypothesis import given, settings, strategies as st

from armillary import Layout, LayoutError


def _rules(error: LayoutError) -> list[str]:
    return [problem.rule for problem in error.problems]


def test_the_world_is_the_product_of_the_degrees() -> None:
    assert Layout().world_size == 1
    assert Layout(cfg=2, gather=3, ulysses=2, tp=4).world_size == 48


def test_degrees_go_from_the_outermost_axis_to_the_innermost() -> None:
    assert list(Layout(tp=2).degrees) == ["cfg", "ring", "gather", "ulysses", "tp"]


def test_the_tp_coordinate_changes_fastest_and_cfg_slowest() -> None:
    layout = Layout(cfg=2, ulysses=2, tp=2)
    places = [layout.coordinate(position) for position in range(8)]
    assert [place["tp"] for place in places] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [place["ulysses"] for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [place["cfg"] for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert all(place["ring"] == place["gather"] == 0 for place in places)


@settings(deadline=None)
@given(cfg=st.sampled_from([1, 2]), ring=st.integers(1, 3), ulysses=st.integers(1, 3), tp=st.integers(1, 4))
def test_every_rank_has_a_coordinate_of_its_own(cfg: int, ring: int, ulysses: int, tp: int) -> None:
    layout = Layout(cfg=cfg, ring=ring, ulysses=ulysses, tp=tp)
    places = {tuple(layout.coordinate(position).values()) for position in range(layout.world_size)}
    assert len(places) == layout.world_size
    assert all(
        at < degree for place in places for at, degree in zip(place, layout.degrees.values(), strict=True)
    )


@pytest.mark.parametrize("position", [-1, 4])
def test_a_position_outside_the_layout_is_a_programming_error(position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position} is outside a layout of 4 ranks"):
        Layout(tp=4).coordinate(position)


@pytest.mark.parametrize("degree", [0, -2, 1.5, "2", True, None])
def test_a_degree_is_a_whole_number_from_one_up(degree: object) -> None:
    with pytest.raises(
        LayoutError, match=re.escape(f"tp={degree!r} is not a number of ranks; use a whole number from 1")
    ):
        Layout(tp=degree)  # type: ignore[arg-type]


def test_guidance_has_two_branches() -> None:
    with pytest.raises(LayoutError, match="cfg=3, but guidance has two branches; use cfg=1 or cfg=2"):
        Layout(cfg=3)


def test_ring_excludes_gather() -> None:
    with pytest.raises(LayoutError, match="ring=2 and gather=3 both split the same keys; use one of them"):
        Layout(ring=2, gather=3)


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(cfg=4, ring=2, gather=2, ulysses=0, tp=-1)
    assert _rules(caught.value) == ["degree-positive", "degree-positive", "cfg-degree", "ring-or-gather"]


def test_a_smaller_layout_may_use_a_subset_of_the_ranks() -> None:
    assert Layout(tp=2).world_problems(available=4) == []
    assert Layout(tp=4).world_problems(available=4) == []


def test_a_larger_layout_than_the_ranks_is_a_problem() -> None:
    (problem,) = Layout(cfg=2, tp=4).world_problems(available=4)
    assert str(problem) == "cfg=2 x tp=4 needs 8 ranks and 4 are available; start 8 ranks or lower a degree"


def test_it_prints_the_axes_in_use() -> None:
    assert str(Layout(cfg=2, tp=4)) == "cfg=2 x tp=4"
    assert str(Layout()) == "one rank"
