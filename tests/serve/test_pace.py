"""How long jobs are thought to take."""

from __future__ import annotations

import json

import pytest

from armillary.serve.jobs import Job
from armillary.serve.pace import Pace

FIELDS = {"width": 64, "height": 64, "num_frames": 5, "num_inference_steps": 10}


@pytest.fixture
def pace() -> Pace:
    pace = Pace()
    pace.learn(Job(request=json.dumps(FIELDS), step_seconds=2.0, run_seconds=23.0))
    return pace


def test_nothing_is_guessed_before_a_job_has_run() -> None:
    assert Pace().remaining(FIELDS) is None


def test_a_job_takes_its_steps_and_what_comes_after(pace: Pace) -> None:
    assert pace.remaining(FIELDS) == pytest.approx(23.0)
    assert pace.remaining(FIELDS, steps_done=4) == pytest.approx(15.0)


def test_a_size_that_has_not_run_costs_in_proportion(pace: Pace) -> None:
    assert pace.remaining(FIELDS | {"width": 128}) == pytest.approx(46.0)
