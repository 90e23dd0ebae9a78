"""The tables of shared flags agree with the types that judge their values."""

from typing import Any

import pytest

from armillary import ArmillaryError, Layout
from armillary.cli.options import AXES, LAYOUT, REQUEST, all_of, layout_of, request_of, seconds_of
from armillary.engine.request import GenerationRequest

NO_REQUEST_FLAGS = dict.fromkeys(REQUEST) | {"sound": False}
NO_LAYOUT_FLAGS: dict[str, Any] = dict.fromkeys(LAYOUT)


def test_request_flags_are_the_fields_of_a_request() -> None:
    assert list(REQUEST) == list(GenerationRequest.model_fields)


def test_layout_flags_name_every_axis() -> None:
    assert list(AXES) == list(LAYOUT)
    assert sorted(AXES.values()) == sorted(Layout.AXES)


def test_text_becomes_a_request() -> None:
    flags = NO_REQUEST_FLAGS | {"prompt": "tea", "num_frames": "9", "guidance_interval": "400,1000"}
    request = GenerationRequest(prompt="tea", num_frames=9, guidance_interval=(400, 1000))
    assert request_of(flags) == request


def test_text_becomes_a_layout() -> None:
    assert layout_of(NO_LAYOUT_FLAGS | {"tensor_parallel_size": "4", "cfg_parallel_size": "2"}) == Layout(
        tp=4, cfg=2
    )


def test_without_layout_flags_the_layout_is_one_rank() -> None:
    assert layout_of(NO_LAYOUT_FLAGS) == Layout()


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "soon", ""])
def test_a_time_limit_is_a_number_of_seconds_above_0(text: str) -> None:
    with pytest.raises(ArmillaryError, match=f"^--step-timeout is '{text}'; use a number of "):
        seconds_of("--step-timeout", text)


def test_wrong_values_of_all_kinds_come_together() -> None:
    flags = NO_REQUEST_FLAGS | NO_LAYOUT_FLAGS | {"num_frames": "six", "tensor_parallel_size": "two"}
    with pytest.raises(ArmillaryError) as raised:
        all_of(lambda: request_of(flags), lambda: layout_of(flags), lambda: seconds_of("--init-timeout", "x"))
    rules = {problem.rule for problem in raised.value.problems}
    assert rules == {"field-missing", "field-form", "degree-positive", "time-limit"}
