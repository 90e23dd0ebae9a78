"""When this process is itself a rank: started by torchrun, or in a process group that the caller made.

No parent watches here, so a thread of the process does: it ends the process when its own heartbeat rests, and
torchrun ends the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from armillary.engine.failure import RaisedError, stalled
from armillary.engine.heartbeat import current_heartbeat
from armillary.engine.worker import Rank, Run, call_task, start_group
from armillary.errors import ArmillaryError, EngineError, LayoutError
from armillary.parallel.device import check_devices, device_for, device_type

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_POLL_SECONDS = 0.2
_ASK_SECONDS = 0.05
_FIRST = "armillary/raised"
_WORD_SECONDS = 1.0
# A rank that waits gives the one it waits for the time to be found first.
_WAITING_MARGIN = 60.0


def joined_group() -> Rank | None:
    """The rank that this process is: in a process group that exists already, else in torchrun's environment.

    None in an ordinary process, found out without importing torch. Raises LayoutError when this machine has
    fewer devices than ranks.
    """
    if _group_exists():
        import torch.distributed as dist

        return _rank(dist.get_rank(), dist.get_world_size())
    if all(name in os.environ for name in _TORCHRUN):
        return _rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return None


def run_as_rank(
    rank: Rank,
    task: str,
    payload: Mapping[str, Any],
    *,
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
) -> Any:
    """Run `task` as the rank that `joined_group` found, and return this rank's own result.

    Starts the process group from torchrun's environment unless there is one, and leaves it in place for the
    next run. Errors name the rank, because every rank raises its own. A heartbeat that rests for
    `step_timeout` seconds (`init_timeout` before the first "computing", 60 s more while it waits for others)
    prints where all threads stand and ends the process with exit code 4.
    """
    run = Run(
        task=task,
        payload=payload,
        world_size=rank.world_size,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
    )
    with _watched(rank, run):
        try:
            if not _group_exists():
                start_group(rank, run, store=_store_of_attempt(rank, run))
            return call_task(run, rank)
        except Exception as error:
            raise _naming(rank, error) from error


def _rank(rank: int, world_size: int) -> Rank:
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    _check_devices(local_rank)
    return Rank(rank, local_rank, world_size, device_for(local_rank), current_heartbeat())


def _group_exists() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _check_devices(local_rank: int) -> None:
    # on the CPU this only warns, and one rank's warning is enough
    if local_rank == 0 or device_type() == "cuda":
        problems = check_devices(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        if problems:
            raise LayoutError(problems)


def _store_of_attempt(rank: Rank, run: Run) -> Store:
    """The store that torchrun's environment names, under a prefix that no earlier attempt has used.

    torchrun's own store outlives attempts, and where earlier ranks could be found lies there for good. How
    often torchrun has started again does not tell attempts apart, since every machine counts for itself. So
    the first rank names the attempt, and the others ask for that name under keys of their own, which no
    earlier rank can have answered.
    """
    # torch exports them in a way that mypy does not see
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    own = secrets.token_hex(8)
    with rank.heartbeat.waiting():
        store, _, _ = next(rendezvous("env://", rank.rank, rank.world_size, timeout=run.group_timeout))
        if rank.rank != 0:
            store.set(f"armillary/asks/{rank.rank}", own)
            name = store.get(f"armillary/answer/{own}").decode()
            store.set(f"armillary/has/{name}/{rank.rank}", "")
            return PrefixStore(name, store)
        deadline = time.monotonic() + run.group_timeout.total_seconds()
        missing = set(range(1, rank.world_size))
        while missing and time.monotonic() < deadline:
            for other in missing:
                if store.check([f"armillary/asks/{other}"]):
                    asked = store.get(f"armillary/asks/{other}").decode()
                    store.set(f"armillary/answer/{asked}", own)
            missing -= {other for other in missing if store.check([f"armillary/has/{own}/{other}"])}
            time.sleep(_ASK_SECONDS if missing else 0)
        return PrefixStore(own, store)


def first_error(rank: Rank, error: Exception) -> tuple[int, RaisedError]:
    """Which rank raised first and what, as far as the ranks can tell each other when `error` ends this one.

    A rank that raises by itself leaves that in the group's store; whose collective failed looks there. Where
    nobody has left anything a rank was killed, and what this one raised is `in_collective`.
    """
    from torch.distributed import distributed_c10d

    raised = RaisedError.of(error, rank.heartbeat.read())
    try:
        store = distributed_c10d._get_default_store()
        if not raised.in_collective:
            store.set(_FIRST, json.dumps([rank.rank, raised.to_json()]))
        elif _has(store, _FIRST, _WORD_SECONDS):
            number, text = json.loads(store.get(_FIRST))
            return number, RaisedError.from_json(text)
    except (RuntimeError, ValueError):  # the store has ended with the process that held it, or none was made
        pass
    return rank.rank, raised


def _has(store: Store, key: str, seconds: float) -> bool:
    """Whether `key` is there in time; `store.wait` would warn where it is not."""
    deadline = time.monotonic() + seconds
    while not (there := bool(store.check([key]))) and time.monotonic() < deadline:
        time.sleep(_ASK_SECONDS)
    return there


def _naming(rank: Rank, error: Exception) -> ArmillaryError:
    raised = RaisedError.of(error, rank.heartbeat.read())
    if raised.is_users_mistake:
        raised = replace(raised, problems=raised.told_by(rank.rank))
    return raised.as_error(rank.rank, output="")


@contextmanager
def _watched(rank: Rank, run: Run) -> Iterator[None]:
    over = threading.Event()
    watchdog = threading.Thread(target=_watch, args=(rank, run, over), name="armillary-watchdog", daemon=True)
    rank.heartbeat.beat()
    watchdog.start()
    try:
        yield
    finally:
        over.set()
        watchdog.join()


def _watch(rank: Rank, run: Run, over: threading.Event) -> None:
    while not over.wait(_POLL_SECONDS):
        pulse = rank.heartbeat.read()
        margin = _WAITING_MARGIN if pulse.phase == "waiting" else 0.0
        timeouts = {"step_timeout": run.step_timeout + margin, "init_timeout": run.init_timeout + margin}
        if time.monotonic() - pulse.time > timeouts["step_timeout" if pulse.ready else "init_timeout"]:
            faulthandler.dump_traceback()
            print(f"error: {stalled(rank.rank, pulse, **timeouts, stopped=False, stack='')}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(EngineError.exit_code)
