"""The server's first process: it owns the port and the data folder, starts the other two, and little else.

`python -m armillary.serve.supervisor RUN_FOLDER`. The HTTP process and the engine process are its children
and end with it, however it ends; one that ends by itself, or hangs, is started again. The port stays open
meanwhile: requests wait in its backlog until the new HTTP process takes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

from armillary.engine.heartbeat import HeartbeatFile, Pulse
from armillary.engine.worker import die_with_parent
from armillary.errors import ArmillaryError, EngineError, Problem, RequestError, reason_of
from armillary.serve.link import Link
from armillary.serve.logs import log
from armillary.serve.settings import SCHEMA, Settings

_LOCK_SECONDS = 10.0
_POLITE_SECONDS = 8.0
_LONGEST_REST = 5.0
_LONGEST_LOOK = 1.0
_BACKLOG = 2048
_GIVE_BACK = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""For glibc: what large bodies and pictures took is given back once they are gone."""
FINAL_CODES = (ArmillaryError.exit_code, EngineError.exit_code)
"""With which the engine process ends where starting it again would be of no use."""


class _Child:
    """One of the two processes, started again whenever it ends."""

    def __init__(
        self, module: str, run: Path, slot: int, link: Link, *more: int, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = module
        self._slot = slot
        told = (str(run), str(os.getpid()), str(slot))
        self._command = [sys.executable, "-m", f"armillary.serve.{module}", *told]
        self._files = (link.fileno(), *more)
        # what a kill leaves in TMPDIR goes with the run folder
        self._env = {**(env or {}), **os.environ, "TMPDIR": str(run)}
        self._rest = 0.1
        self._started = 0.0
        self._due = 0.0
        self._beats = 0
        self._silent = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start_when_due(self) -> None:
        if self.process is None and time.monotonic() >= self._due:
            self._started = time.monotonic()
            self._silent = 0.0
            command = [*self._command, *map(str, self._files)]
            self.process = subprocess.Popen(
                command, pass_fds=self._files, stdin=subprocess.DEVNULL, env=self._env
            )
            log("process_started", process=self.name, pid=self.process.pid)

    def ended(self) -> int | None:
        """Its exit code if it has ended since the last look; it is then due again, later the more often."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        lived = time.monotonic() - self._started
        self._rest = 0.1 if lived > 30 else min(2 * self._rest, _LONGEST_REST)
        self._due = time.monotonic() + self._rest
        self.process = None
        log("process_ended", process=self.name, exit_code=code)
        return code

    def kill_if_silent(self, pulses: Sequence[Pulse], passed: float, limit: float) -> None:
        """It hangs, or a signal has stopped it, when it has not beaten for `limit` seconds of our own time:
        `passed` since the last look, of which there may be no more than a little where all were stopped."""
        beats = pulses[self._slot].beats
        self._silent = 0.0 if beats != self._beats else self._silent + min(passed, _LONGEST_LOOK)
        self._beats = beats
        if self.process is not None and self._silent > limit:
            log("process_hangs", process=self.name, pid=self.process.pid, silent=round(self._silent, 1))
            self._silent = 0.0
            self.process.kill()

    def ask_to_end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def end(self, deadline: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def supervise(settings: Settings) -> int:
    """Run the server until a signal ends it (0) or its ranks cannot be started at all (their exit code).

    Raises RequestError where the port or the data folder is taken.
    """
    stop = _Stop()
    lock = _lock(settings.data, stop)
    if lock is None:
        return 0
    _check_schema(settings.database)
    _remove_leftovers(settings)
    port = _bind(settings.host, settings.port)
    to_http, to_engine = Link.pair()
    # both children keep the lock too: a new server must not start beside an engine that has not ended yet
    children = (
        _Child("http_process", settings.run, 0, to_http, lock, port.fileno(), env=_GIVE_BACK),
        _Child("engine_process", settings.run, 1, to_engine, lock),
    )
    heartbeats = HeartbeatFile.create(settings.beats, len(children))
    try:
        return _watch(children, heartbeats, settings.process_timeout, to_engine, stop)
    finally:
        deadline = time.monotonic() + _POLITE_SECONDS
        for child in children:
            child.ask_to_end()
        for child in children:
            child.end(deadline)
        log("stopped", jobs_in=str(settings.data))


def _watch(
    children: tuple[_Child, ...], heartbeats: HeartbeatFile, timeout: float, to_engine: Link, stop: _Stop
) -> int:
    looked = time.monotonic()
    while not stop.wanted:
        pulses, before, looked = heartbeats.read(), looked, time.monotonic()
        for child in children:
            child.start_when_due()
            child.kill_if_silent(pulses, looked - before, timeout)
            code = child.ended()
            if child.name == "engine_process" and code is not None:
                if code in FINAL_CODES:
                    return code
                # in the engine's place, since nothing else tells the clients
                to_engine.send({"state": "restarting", "error": "the engine process ended"})
        stop.wait(0.05)
    return 0


class _Stop:
    """SIGTERM, SIGINT and SIGHUP end the server in order."""

    def __init__(self) -> None:
        self.wanted = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.wanted = True
        log("stopping", signal=signal.Signals(number).name)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def _lock(data: Path, stop: _Stop) -> int | None:
    """Hold the data folder; the file stays locked until every process that has it open has ended. None where
    a signal ends the server meanwhile."""
    try:
        for folder in (data, data / "uploads", data / "results"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        why = f"--data-dir {data} cannot be used ({reason_of(error)})"
        fix = "give a folder in which this user can write"
        raise RequestError(Problem("data-dir", why, fix)) from None
    deadline, waits = time.monotonic() + _LOCK_SECONDS, False
    while not stop.wanted:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                why = f"{data} is in use by another server"
                raise RequestError(Problem("data-dir", why, "stop it, or give another --data-dir")) from None
            if not waits:
                log("waiting", reason=f"{data} is in use by another server", at_most=_LOCK_SECONDS)
            waits = True
            stop.wait(0.1)
    return None


def _check_schema(database: Path) -> None:
    """Refuse jobs of a version that keeps them otherwise. Without SQLAlchemy, to keep this process small."""
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database)) as store:
            (schema,) = store.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        why = f"{database} cannot be read ({error})"
        raise RequestError(Problem("data-dir", why, "restore it, or give another --data-dir")) from None
    if schema not in (0, SCHEMA):
        why = f"{database} was written by another version (schema {schema}, this one has {SCHEMA})"
        raise RequestError(Problem("data-dir", why, "use that version, or give another --data-dir"))


def _remove_leftovers(settings: Settings) -> None:
    """What a server that was killed has left: its run folder. Children see to its files."""
    note = settings.data / "run"
    if note.exists():
        old = Path(note.read_text())
        if old != settings.run and old.name.startswith("armillary-"):
            shutil.rmtree(old, ignore_errors=True)
    note.write_text(str(settings.run))


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        why = f"{host} port {port} cannot be opened ({reason_of(error)})"
        raise RequestError(Problem("port", why, "give another --host or --port")) from None
    return listener


def main(arguments: list[str]) -> int:
    """Exit codes as everywhere: 0 ended by a signal, 2 refused, 4 the ranks cannot be started."""
    run = Path(arguments[0])
    if len(arguments) > 1:  # under torchrun the first rank is the parent
        die_with_parent(int(arguments[1]))
    try:
        return supervise(Settings.read(run))
    except ArmillaryError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    finally:
        with suppress(OSError):
            shutil.rmtree(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
