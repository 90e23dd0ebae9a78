"""What a model remembers of a forward over the rows of all ranks."""

import pytest
import torch

from armillary.layout import Layout
from armillary.parallel.context import Context
from armillary.parallel.mesh import build_mesh
from armillary.parallel.shared_attention import KEPT_SHAPES, Counts

HERE = torch.device("cpu")


@pytest.fixture
def counts() -> Counts:
    return Counts(Context.of(build_mesh(Layout()).groups))


def test_counts_are_known_after_a_forward_of_the_same_shapes(counts: Counts) -> None:
    counts.begin("shapes")
    counts.of(3, device=HERE)
    counts.end()
    counts.begin("shapes")
    with pytest.raises(AssertionError, match="4,\\) rows where this place of the forward had \\(3,"):
        counts.of(4, device=HERE)


def test_a_forward_that_raised_half_way_leaves_nothing(counts: Counts) -> None:
    counts.begin("shapes")
    counts.of(3, device=HERE)
    counts.begin("shapes")  # the first has not ended
    assert [rows.ranges for rows in counts.of(4, 5, device=HERE)] == [((0, 4),), ((0, 5),)]


def test_the_shapes_used_last_are_kept(counts: Counts) -> None:
    for shapes in range(KEPT_SHAPES + 1):
        counts.begin(shapes)
        counts.of(3, device=HERE)
        counts.end()
    counts.begin(0)
    assert counts.of(4, device=HERE)
