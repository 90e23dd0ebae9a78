"""Run the soak tests and keep their figures in benchmarks/results/soak.json, with commit, date and machine.

A test adds a figure with pytest's `record_property("ratio", 0.93)`. Exits with pytest's exit code.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from common import provenance, publish

TESTS = Path(__file__).parents[1] / "tests"


class Figures:
    """Pytest plugin: outcome, seconds and recorded properties of every test that ran."""

    def __init__(self) -> None:
        self.tests: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            outcome = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
            self.tests.append({**outcome, **dict(report.user_properties)})


def main() -> int:
    figures = Figures()
    code = pytest.main(["-m", "soak", "--timeout=7200", str(TESTS), *sys.argv[1:]], plugins=[figures])
    if figures.tests:
        publish("soak", {**provenance(), "tests": figures.tests}, keep=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
