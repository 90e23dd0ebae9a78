"""The tables of shared flags agree with the types that judge their values."""

from typing import Any

import pytest
import typer

from armillary import Layout
from armillary.cli.options import AXES, LAYOUT, REQUEST, degrees_of, request_of, time_limit
from armillary.engine.request import GenerationRequest

NOTHING_GIVEN: dict[str, Any] = dict.fromkeys([*REQUEST, *LAYOUT]) | {"sound": False}


def test_request_flags_are_the_fields_of_a_request() -> None:
    assert list(REQUEST) == list(GenerationRequest.model_fields)


def test_layout_flags_name_every_axis() -> None:
    assert list(AXES) == list(LAYOUT)
    assert sorted(AXES.values()) == sorted(Layout.AXES)


def test_text_becomes_a_request() -> None:
    flags = NOTHING_GIVEN | {"prompt": "tea", "num_frames": "9", "guidance_interval": "400,1000"}
    request = GenerationRequest(prompt="tea", num_frames=9, guidance_interval=(400, 1000))
    assert GenerationRequest.parse(request_of(flags)) == request


def test_text_becomes_a_layout() -> None:
    flags = NOTHING_GIVEN | {"tensor_parallel_size": "4", "cfg_parallel_size": "2"}
    assert Layout(**degrees_of(flags)) == Layout(tp=4, cfg=2)


def test_without_layout_flags_the_layout_is_one_rank() -> None:
    assert Layout(**degrees_of(NOTHING_GIVEN)) == Layout()


def test_a_degree_that_is_no_number_is_left_for_the_layout_to_name() -> None:
    assert degrees_of(NOTHING_GIVEN | {"tensor_parallel_size": "two"}) == {"tp": "two"}


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan"), float("inf")])
def test_a_time_limit_is_a_number_of_seconds_above_0(seconds: float) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not a number of seconds above 0, such as 30$"):
        time_limit(seconds)
