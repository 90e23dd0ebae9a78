"""Prints the greatest private memory (RssAnon, bytes) that a process had, seen from outside.

    python -S benchmarks/private_memory.py PID

Says "looking" first, and looks every 2 ms until its standard input is closed.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

SECONDS = 0.002


def private_bytes(pid: int | str = "self") -> int:
    """Private (anonymous) resident memory of a process now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def main() -> None:
    print("looking", flush=True)
    peak = 0
    while not select.select([sys.stdin], [], [], SECONDS)[0]:
        peak = max(peak, private_bytes(sys.argv[1]))
    print(peak)


if __name__ == "__main__":
    main()
