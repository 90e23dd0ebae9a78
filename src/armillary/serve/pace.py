"""How long jobs take, from those that ran: seconds a step for a size, and what comes after the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from armillary.serve.jobs import Job


@dataclass(frozen=True)
class Speed:
    """What was measured of one size."""

    step_seconds: float
    rest_seconds: float
    """Of a whole run, beyond its steps: the prompts, decoding, encoding."""


class Pace:
    """Speeds by size. A size that has not run yet is taken to cost in proportion to its pixels."""

    def __init__(self) -> None:
        self._speeds: dict[int, Speed] = {}

    def learn(self, job: Job) -> None:
        """Take a completed job into account."""
        if job.step_seconds is not None and job.run_seconds is not None:
            rest = job.run_seconds - job.step_seconds * job.fields["num_inference_steps"]
            self._speeds[_volume(job.fields)] = Speed(job.step_seconds, max(0.0, rest))

    def remaining(self, fields: dict[str, Any], steps_done: int = 0) -> float | None:
        """Seconds that a job still takes; None while nothing has been measured."""
        volume = _volume(fields)
        nearest = min(tuple(self._speeds), key=lambda known: abs(known - volume), default=None)
        if nearest is None:
            return None
        speed = self._speeds[nearest]
        steps = int(fields["num_inference_steps"]) - steps_done
        return (steps * speed.step_seconds + speed.rest_seconds) * volume / nearest


def _volume(fields: dict[str, Any]) -> int:
    return int(fields["width"] * fields["height"] * fields["num_frames"])
