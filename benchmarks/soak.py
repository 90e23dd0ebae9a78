"""Run the soak tests and keep their figures in benchmarks/soak.json, with commit, date and machine.

A test adds a figure with pytest's `record_property("ratio", 0.93)`. Exits with pytest's exit code.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Figures:
    """Pytest plugin: outcome, seconds and recorded properties of every test that ran."""

    def __init__(self) -> None:
        self.tests: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            outcome = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
            self.tests.append({**outcome, **dict(report.user_properties)})


def provenance() -> dict[str, object]:
    """Commit (marked when the tree differs from it), UTC date, and the machine."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return {
        "commit": subprocess.run(describe, cwd=HERE, capture_output=True, text=True).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def main() -> int:
    figures = Figures()
    code = pytest.main(["-m", "soak", str(HERE.parent / "tests"), *sys.argv[1:]], plugins=[figures])
    if figures.tests:
        document = {**provenance(), "tests": figures.tests}
        (HERE / "soak.json").write_text(json.dumps(document, indent=2) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
