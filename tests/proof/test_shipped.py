"""The shipped plans on small models of their classes; all of them are proven by `armillary verify --all`."""

from collections.abc import Sequence

import pytest

from armillary.errors import ArmillaryError
from armillary.layout import Layout
from armillary.proof.shipped import Row, Skipped, verify_all

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*ranks share.*CPU cores:RuntimeWarning"),
]


@pytest.fixture(scope="module")
def told() -> tuple[Sequence[Row], Sequence[Skipped]]:
    return verify_all([Layout(tp=2), Layout(tp=3)], model_class="FluxTransformer2DModel")


def test_every_variant_is_proven_with_the_agreed_keys(told: tuple[Sequence[Row], Sequence[Skipped]]) -> None:
    found = [row.to_json() for row in told[0]]
    assert [row["variant"] for row in found] == ["guidance", "no-guidance", "no-single-blocks"]
    keys = ["class", "variant", "tp", "relative_l2", "split_fraction", "ranks_equal"]
    assert all(list(row)[:6] == keys for row in found)
    assert all(row["ok"] and row["ranks_equal"] and row["split_fraction"] > 0.9 for row in found)


def test_a_degree_that_a_model_cannot_do_is_told_as_skipped(
    told: tuple[Sequence[Row], Sequence[Skipped]],
) -> None:
    assert [one.layout for one in told[1]] == [Layout(tp=3)] * 3
    assert "tp=3 does not divide" in told[1][0].line()


def test_nothing_proven_is_no_success() -> None:
    with pytest.raises(ArmillaryError, match="tp=3 does not divide"):
        verify_all([Layout(tp=3)], model_class="FluxTransformer2DModel")


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ArmillaryError, match="FluxTransformer2D has no registered plan"):
        verify_all(model_class="FluxTransformer2D")
