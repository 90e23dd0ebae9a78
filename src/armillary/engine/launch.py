"""Run a task on ranks: on new local processes, or as one of those that torchrun started.

    result = run("package.module:task", {"any": "JSON"}, world_size=2)

Whatever happens, the result or an error comes back, and then every local rank has ended and the run folder is
removed: the first traceback is in the error. (A caller that is killed takes its ranks along and leaves the
folder.)
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from armillary.engine.group import RankGroup
from armillary.engine.torchrun import joined_group, run_as_rank
from armillary.engine.worker import Run, RunFolder
from armillary.errors import LayoutError, Problem
from armillary.parallel.device import check_devices


def run_ranks(
    task: str,
    payload: Mapping[str, Any],
    world_size: int,
    *,
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
    env: Mapping[str, str] | None = None,
    cancelled: threading.Event | None = None,
) -> Any:
    """Run `task` on `world_size` new local processes and return rank 0's result.

    `task` is "package.module:function", called as `function(payload, rank: Rank)` on every rank; payload and
    result are JSON. A rank whose heartbeat rests for `step_timeout` seconds (`init_timeout` until every rank
    has said "computing" once) ends the group. `env` adds to the ranks' environment; setting `cancelled` from
    another thread ends them.

    Raises LayoutError for more ranks than devices, `RankError` (an EngineError) naming the rank that raised,
    died or stalled first, and an ArmillaryError that a rank raised as the same class. Ctrl-C and SIGTERM end
    the ranks before they act on the caller.
    """
    if problems := check_devices(world_size):
        raise LayoutError(problems)
    run = Run(
        task=task,
        payload=payload,
        world_size=world_size,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
    )
    with (
        _sigterm_unwinds(),
        tempfile.TemporaryDirectory(prefix="armillary-") as folder,
        ThreadPoolExecutor(1, thread_name_prefix="armillary-ranks") as threads,
    ):
        group = RankGroup(run, RunFolder(Path(folder)), env or {}, cancelled or threading.Event())
        # Linux ties the ranks' lives to the thread that starts them, and torch takes over the signal handlers
        # of a main thread that does: so one thread starts them and stays as long as they do.
        result = threads.submit(group.run)
        try:
            return result.result()
        finally:
            group.cancelled.set()


def run(
    task: str,
    payload: Mapping[str, Any],
    world_size: int,
    *,
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
) -> Any:
    """Run `task` on `world_size` ranks: those that torchrun started, of which this process is one and whose
    result it gets, or else new local ones. See `run_as_rank` and `run_ranks`."""
    rank = joined_group()
    if rank is None:
        return run_ranks(task, payload, world_size, step_timeout=step_timeout, init_timeout=init_timeout)
    if problems := rank_problems(world_size):
        raise LayoutError(problems)
    return run_as_rank(rank, task, payload, step_timeout=step_timeout, init_timeout=init_timeout)


def rank_problems(world_size: int) -> list[Problem]:
    """Why `run` could not have `world_size` ranks: those that torchrun started are not as many, or this
    machine has too few devices."""
    rank = joined_group()
    if rank is None:
        return check_devices(world_size)
    if rank.world_size == world_size:
        return []
    return [
        Problem(
            "group-fits-layout",
            f"the layout has {world_size} ranks and the process group {rank.world_size}",
            f"give degrees that multiply to {rank.world_size}, or start {world_size} ranks",
        )
    ]


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Within the block, a SIGTERM or SIGHUP that would end the process at once raises SystemExit instead, so
    that the ranks are ended and the run folder is removed. A caller's own handlers stay."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    signals = [s for s in (signal.SIGTERM, signal.SIGHUP) if in_main_thread and _is_default(s)]
    for number in signals:
        signal.signal(number, _exit_on_signal)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _is_default(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
