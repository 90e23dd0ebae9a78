"""What the benchmarks share: taking turns, medians with their spread, and where and when it was measured."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


class Elapsed(NamedTuple):
    """How long one call took, in seconds."""

    wall: float
    cpu: float
    """Of all threads of this process. Unlike the wall time it hardly grows when others use the cores too."""


def interleave(
    runs: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warm_up: int = 1,
    before_each: Callable[[], object] = lambda: None,
) -> dict[str, list[Elapsed]]:
    """The times of every repeat of every run, taken in turns, so that a busy moment hits all of them alike.

    Every other turn goes backwards, so that none always runs in the wake of the same other one.
    `before_each` is not timed: a barrier between ranks, or what empties a cache.
    """
    times: dict[str, list[Elapsed]] = {name: [] for name in runs}
    for turn in range(-warm_up, repeats):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            before_each()
            wall, cpu = time.perf_counter(), time.process_time()
            runs[name]()
            elapsed = Elapsed(time.perf_counter() - wall, time.process_time() - cpu)
            if turn >= 0:
                times[name].append(elapsed)
    return times


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, quartiles, least, greatest and how many."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    figures = {"median": median, "q1": low, "q3": high, "min": min(values), "max": max(values)}
    return {**{name: round(value, digits) for name, value in figures.items()}, "n": len(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The spread of ours / theirs, each pair from the same turn, and the ratio of the two medians."""
    pairs = spread([a / b for a, b in zip(ours, theirs, strict=True)], digits=3)
    return {"of_medians": round(statistics.median(ours) / statistics.median(theirs), 3), **pairs}


@dataclass(frozen=True)
class Goal:
    """At most `limit`, and what the run showed."""

    limit: float
    found: float

    def told(self) -> dict[str, object]:
        return {"limit": round(self.limit, 3), "found": round(self.found, 3), "met": self.found <= self.limit}


def provenance() -> dict[str, object]:
    """Commit (marked when the tree differs from it), UTC date, versions and the machine."""
    import diffusers
    import torch

    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    here = Path(__file__).parent
    return {
        "commit": subprocess.run(describe, cwd=here, capture_output=True, text=True).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "load_average": [round(load, 1) for load in os.getloadavg()],
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
        },
    }


def publish(name: str, document: Mapping[str, object], *, keep: bool) -> None:
    """Print `document` as JSON, and with `keep` write it to `results/NAME.json` as well."""
    text = json.dumps(document, indent=2)
    print(text)
    if keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text + "\n")


def _processor() -> str:
    """The processor's own name where Linux tells it."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
