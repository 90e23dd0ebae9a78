"""Small tasks that the tests run on ranks."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from armillary.engine.heartbeat import current_heartbeat
from armillary.engine.worker import Rank
from armillary.errors import CheckpointError, Problem

Payload = Mapping[str, Any]
_LISTEN = "0A"


def report(payload: Payload, rank: Rank) -> dict[str, Any]:
    """What the ranks are like, told by each and gathered."""
    total = torch.tensor([rank.rank + 1.0])
    meet(total)
    told: list[dict[str, Any]] = [{} for _ in range(rank.world_size)]
    dist.all_gather_object(told, {"listens_on": _listening_addresses(), "threads": torch.get_num_threads()})
    print("this must not reach the caller's stdout")
    return {"total": total.item(), "payload": dict(payload), "ranks": told}


def fail_on_rank_1(payload: Payload, rank: Rank) -> None:
    """Rank 1 fails in the way that the payload says, while rank 0 waits for it in a collective."""
    rank.heartbeat.beat("computing", step=2, steps=5)
    if rank.rank == 1:
        Path(payload["failed_at"]).write_text(str(time.monotonic()))
        _WAYS[payload["way"]](payload, rank)
    meet(torch.ones(1))


def leave_pids_and_sleep(payload: Payload, rank: Rank) -> None:
    Path(payload["folder"], f"pid-{rank.rank}").write_text(str(os.getpid()))
    time.sleep(60)


def sleep_too_long(payload: Payload, rank: Rank) -> None:
    time.sleep(60)


def meet(tensor: torch.Tensor) -> None:
    with current_heartbeat().waiting():
        dist.all_reduce(tensor)


def _raise(payload: Payload, rank: Rank) -> None:
    print("the last words of rank 1")
    raise ValueError("boom")


def _refuse(payload: Payload, rank: Rank) -> None:
    raise CheckpointError(
        [Problem("shape", "a is (2, 3), not (3, 2)", "fetch it again"), Problem("gone", "b")]
    )


def _stop_in_a_collective(payload: Payload, rank: Rank) -> None:
    with current_heartbeat().waiting():
        os.kill(os.getpid(), signal.SIGSTOP)


_WAYS: dict[str, Callable[[Payload, Rank], None]] = {
    "raise": _raise,
    "refuse": _refuse,
    "kill": lambda payload, rank: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda payload, rank: os._exit(0),
    "sleep": sleep_too_long,
    "stop": _stop_in_a_collective,
}


def _listening_addresses() -> list[str]:
    """Local addresses of the sockets of this process that accept connections, as /proc writes them."""
    mine = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for table in ("tcp", "tcp6") for line in _lines_of(Path("/proc/net", table))]
    return [line[1].split(":")[0] for line in lines if line[3] == _LISTEN and f"socket:[{line[9]}]" in mine]


def _lines_of(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []
