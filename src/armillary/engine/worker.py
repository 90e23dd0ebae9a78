"""One rank: a process that `launch` starts, which runs one task and ends.

`python -m armillary.engine.worker FOLDER RANK PARENT_PID`. The run folder holds what to do (`run.json`), the
rendezvous and the heartbeats; the rank leaves its result or its error there. The order in `main` matters: a
rank must not outlive its parent, so that comes before everything that takes time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.failure import RaisedError, exit_code_of
from armillary.engine.heartbeat import Heartbeat, HeartbeatFile, heartbeat_of_this_process

if TYPE_CHECKING:
    import torch

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Rank:
    """Which process of the group this is; what a task is given beside its payload."""

    rank: int
    local_rank: int
    """Its number among the ranks of its machine."""
    world_size: int
    device: torch.device
    heartbeat: Heartbeat


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every rank of a group is told, as JSON."""

    task: str
    """ "package.module:function"."""
    payload: Mapping[str, Any]
    world_size: int
    step_timeout: float
    init_timeout: float

    @property
    def group_timeout(self) -> timedelta:
        """How long a collective may take. Longer than all that the heartbeat allows, so that the rank that
        stalled is named before the backend blames a rank that waits for it."""
        return timedelta(seconds=max(self.step_timeout, self.init_timeout) + 120)


@dataclass(frozen=True)
class RunFolder:
    """Where parent and ranks leave things for each other. Private to the user, and gone after the run."""

    path: Path

    @property
    def heartbeats(self) -> Path:
        return self.path / "heartbeats"

    @property
    def rendezvous(self) -> Path:
        return self.path / "rendezvous"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def error(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.error.json"

    def output(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.log"

    def stacks(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.stacks"

    def write_run(self, run: Run) -> None:
        (self.path / "run.json").write_text(json.dumps(asdict(run)))

    def read_run(self) -> Run:
        return Run(**json.loads((self.path / "run.json").read_text()))


def main(arguments: list[str]) -> None:
    """Run the rank's task and end the process: 0 when done, 2 for a user's mistake, 4 for any other error."""
    folder, rank, parent = RunFolder(Path(arguments[0])), int(arguments[1]), int(arguments[2])
    die_with_parent(parent)
    _direct_output(folder, rank)
    heartbeat = Heartbeat.open(folder.heartbeats, rank)
    try:
        _run(folder, folder.read_run(), rank, heartbeat)
    except BaseException as error:
        RaisedError.of(error, heartbeat.read()).write(folder.error(rank))
        _leave(exit_code_of(error))
    _leave(0)


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends, however that is: by the kernel on Linux, else by looking."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_end_when_orphaned, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def start_group(rank: Rank, run: Run, **rendezvous: Any) -> None:
    """Join the process group, over `store=` or `init_method=`. Waits until all ranks are there."""
    import torch.distributed as dist

    from armillary.parallel.device import backend

    with rank.heartbeat.waiting():
        dist.init_process_group(
            backend(), rank=rank.rank, world_size=rank.world_size, timeout=run.group_timeout, **rendezvous
        )


def call_task(run: Run, rank: Rank) -> Any:
    """Import the task and run it, with this rank's heartbeat as the current one."""
    with heartbeat_of_this_process(rank.heartbeat):
        return find_task(run.task)(run.payload, rank)


def find_task(name: str) -> Callable[[Mapping[str, Any], Rank], Any]:
    """The function that "package.module:function" names."""
    module, _, function = name.partition(":")
    task: Callable[[Mapping[str, Any], Rank], Any] = getattr(importlib.import_module(module), function)
    return task


def _run(folder: RunFolder, run: Run, rank_number: int, heartbeat: Heartbeat) -> None:
    # torch exports it in a way that mypy does not see
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from armillary.parallel.device import device_for

    rank = Rank(rank_number, rank_number, run.world_size, device_for(rank_number), heartbeat)
    store = FileStore(str(folder.rendezvous), run.world_size)
    store.set_timeout(run.group_timeout)
    start_group(rank, run, store=store)
    result = call_task(run, rank)
    if rank.rank == 0:
        folder.result.write_text(json.dumps(result))
    heartbeat.beat("done")
    _await_others(folder, run)


def _await_others(folder: RunFolder, run: Run) -> None:
    """Stay until all ranks are done, because a peer that closes its connections makes their last collectives
    fail. The parent ends this rank if another one never gets there."""
    slots = HeartbeatFile(folder.heartbeats, run.world_size)
    while any(pulse.phase != "done" for pulse in slots.read()):
        time.sleep(0.01)


def _direct_output(folder: RunFolder, rank: int) -> None:
    """Rank 0 shares the parent's stderr, for progress bars; stdout belongs to the parent's own result. The
    other ranks write to a file that is shown if they fail. On SIGUSR1 a rank writes down where it stands."""
    if rank != 0:
        os.dup2(_open_to_append(folder.output(rank)), 2)
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=_open_to_append(folder.stacks(rank)))


def _open_to_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _end_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _leave(code: int) -> None:
    """End now. An ordinary exit would wait for threads and process groups that may never answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Under its own name, so that tasks that import this module get the same `Rank`.
    from armillary.engine.worker import main as main_of_module

    main_of_module(sys.argv[1:])
