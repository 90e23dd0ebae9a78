"""Run the soak tests and keep their figures in benchmarks/results/soak.json, each with its commit and date.

    python benchmarks/soak.py [pytest's arguments, such as tests/serve]

A run of some of them replaces what the file has of these and leaves the others. A test adds a figure with
pytest's `record_property("ratio", 0.93)`. Exits with pytest's exit code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from common import provenance, publish

TESTS = Path(__file__).parents[1] / "tests"
RESULTS = Path(__file__).parent / "results" / "soak.json"


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
    code = pytest.main(["-m", "soak", "--timeout=7200", *(sys.argv[1:] or [str(TESTS)])], plugins=[figures])
    if figures.tests:
        where = provenance()
        when = {"commit": where["commit"], "date": where["date"]}
        tests = {**_kept(), **{str(test["test"]): {**test, **when} for test in figures.tests}}
        publish("soak", {**where, "tests": [tests[name] for name in sorted(tests)]}, keep=True)
    return int(code)


def _kept() -> dict[str, dict[str, object]]:
    """What earlier runs found, by the test's name."""
    kept = json.loads(RESULTS.read_text())["tests"] if RESULTS.exists() else []
    return {test["test"]: test for test in kept}


if __name__ == "__main__":
    sys.exit(main())
