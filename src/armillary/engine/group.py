"""One group of ranks on this machine: started, watched and ended.

The ranks are processes of their own with nothing of the caller's script in them (`worker.py`). They meet
over a file, so nothing listens but gloo's and NCCL's own sockets, on loopback.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from armillary.engine.failure import RaisedError, died, first_failure, stalled, written
from armillary.engine.heartbeat import HeartbeatFile, Pulse, find_stalled
from armillary.engine.worker import Run, RunFolder
from armillary.errors import ArmillaryError, EngineError, Problem
from armillary.parallel.device import cores

_POLL_SECONDS = 0.1
_POLITE_SECONDS = 3.0
_FIRM_SECONDS = 10.0
_STACK_SECONDS = 1.0
_OUTPUT_LINES = 20


class RankGroup:
    """One group of ranks, from start to end; `run` belongs to one thread."""

    def __init__(
        self, run: Run, folder: RunFolder, env: Mapping[str, str], cancelled: threading.Event
    ) -> None:
        self.cancelled = cancelled
        """Set from another thread to end the ranks."""
        self._run = run
        self._folder = folder
        self._env = env
        self._ranks: list[Popen[bytes]] = []

    def run(self) -> Any:
        self._folder.write_run(self._run)
        heartbeats = HeartbeatFile.create(self._folder.heartbeats, self._run.world_size)
        try:
            self._ranks = self._start()
            self._watch(heartbeats)
        finally:
            self._end()
            heartbeats.close()
        return json.loads(self._folder.result.read_text())

    def _start(self) -> list[Popen[bytes]]:
        from torch.distributed.elastic.multiprocessing import (
            DefaultLogsSpecs,
            SubprocessContext,
            start_processes,
        )

        world = range(self._run.world_size)
        environment = _environment(self._run.world_size, self._env)
        with _quiet_elastic():
            context = start_processes(
                name="armillary",
                entrypoint=sys.executable,
                args={rank: self._arguments(rank) for rank in world},
                envs={rank: dict(environment) for rank in world},
                logs_specs=DefaultLogsSpecs(log_dir=str(self._folder.path / "elastic")),
            )
        assert isinstance(context, SubprocessContext), "an entrypoint that is a path starts subprocesses"
        return [context.subprocess_handlers[rank].proc for rank in world]

    def _arguments(self, rank: int) -> tuple[str, ...]:
        return ("-m", "armillary.engine.worker", str(self._folder.path), str(rank), str(os.getpid()))

    def _watch(self, heartbeats: HeartbeatFile) -> None:
        """Return when all ranks have ended well; raise for the first one that fails or stalls."""
        while not self.cancelled.wait(_POLL_SECONDS):
            codes = [rank.poll() for rank in self._ranks]
            pulses = heartbeats.read()  # after the codes: who has ended has made its last beat
            if any(c or (c == 0 and p.phase != "done") for c, p in zip(codes, pulses, strict=True)):
                raise self._failure(pulses)
            if all(code == 0 for code in codes):
                return
            self._refuse_stall(pulses)
        raise EngineError("the run was cancelled")

    def _failure(self, pulses: list[Pulse]) -> ArmillaryError:
        exits = {
            rank: code
            for rank, process in enumerate(self._ranks)
            if (code := process.poll()) or (code == 0 and pulses[rank].phase != "done")
        }
        raised = {rank: error for rank in exits if (error := RaisedError.read(self._folder.error(rank)))}
        rank = first_failure(exits, raised)
        output = written(self._folder.output(rank), f"last output of rank {rank}", _OUTPUT_LINES)
        return raised[rank].as_error(rank, output) if rank in raised else died(rank, exits[rank], output)

    def _refuse_stall(self, pulses: list[Pulse]) -> None:
        timeouts = {"step_timeout": self._run.step_timeout, "init_timeout": self._run.init_timeout}
        rank = find_stalled(pulses, time.monotonic(), **timeouts, is_stopped=self._is_stopped)
        if rank is not None:
            stopped = self._is_stopped(rank)
            raise stalled(rank, pulses[rank], **timeouts, stopped=stopped, stack=self._stack_of(rank))

    def _is_stopped(self, rank: int) -> bool:
        return _process_state(self._ranks[rank].pid) in ("T", "t")

    def _stack_of(self, rank: int) -> str:
        """Where a rank stands, if it can still say so."""
        stacks = self._folder.stacks(rank)
        self._ranks[rank].send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_SECONDS
        while not _has_text(stacks) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        time.sleep(_POLL_SECONDS)  # it writes line by line
        return written(stacks, f"where rank {rank} stands")

    def _end(self) -> None:
        """Politely, then firmly; the ranks lead process groups of their own."""
        for number, patience in ((signal.SIGTERM, _POLITE_SECONDS), (signal.SIGKILL, _FIRM_SECONDS)):
            alive = [rank for rank in self._ranks if rank.poll() is None]
            for rank in alive:
                with suppress(ProcessLookupError):
                    os.killpg(rank.pid, number)
                    os.killpg(rank.pid, signal.SIGCONT)  # a stopped process hears nothing but SIGKILL
            deadline = time.monotonic() + patience
            for rank in alive:
                with suppress(TimeoutExpired):
                    rank.wait(max(0.0, deadline - time.monotonic()))


def _environment(world_size: int, wanted: Mapping[str, str]) -> dict[str, str]:
    """What the ranks' environment has beside the caller's."""
    loopback = _loopback_interface()
    return {
        # As many threads in all as there are cores, unless the user says otherwise.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // world_size))),
        # The ranks import what the caller can import, and nothing from the working folder beside it.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "PYTHONSAFEPATH": "1",
        **wanted,
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def _loopback_interface() -> str:
    """ "lo" on Linux, "lo0" on macOS and the BSDs."""
    names = {name for _, name in socket.if_nameindex()}
    if not (found := names & {"lo", "lo0"}):
        problem = (
            f"ranks meet over the loopback interface and this machine has only {', '.join(sorted(names))}"
        )
        raise EngineError(Problem("loopback", problem, "bring the loopback interface up"))
    return min(found)


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _process_state(pid: int) -> str:
    """The kernel's letter for what a process does ("T" is stopped), or "" where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # its name, in brackets, may hold anything


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """torch warns that it cannot take over the signal handlers from this thread, which is why it is used."""
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    thread = threading.get_ident()

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(from_elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(from_elsewhere)
