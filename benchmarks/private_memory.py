"""Prints the greatest private memory (RssAnon, bytes) that a process had, seen from outside.

    python -S benchmarks/private_memory.py PID

Says "looking" first, and looks every 10 ms until its standard input is closed.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

SECONDS = 0.01


def private_bytes(pid: int | str = "self") -> int:
    """Private (anonymous) resident memory of a process now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@dataclass
class Watched:
    """What was seen."""

    peak: int = 0
    """Bytes; known when the block has ended."""


@contextmanager
def watched() -> Iterator[Watched]:
    """Another process looks at this one within the block."""
    seen = Watched()
    looking = [sys.executable, "-S", __file__, str(os.getpid())]
    with Popen(looking, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()  # it looks
        yield seen
        seen.peak = int(process.communicate()[0])


def main() -> None:
    print("looking", flush=True)
    peak = 0
    while not select.select([sys.stdin], [], [], SECONDS)[0]:
        peak = max(peak, private_bytes(sys.argv[1]))
    print(peak)


if __name__ == "__main__":
    main()
