"""A heartbeat per rank in one small shared file, and who has stopped beating.

Each rank owns one slot and writes it with a store of a few bytes (about a microsecond); whoever watches
reads all slots. A rank that waits in a collective says so, because when one rank stalls, all the others wait
for it: the silent one that does not wait is to blame.

    with current_heartbeat().waiting():      # parallel/collectives.py, around every collective
        dist.all_reduce(tensor)
    current_heartbeat().beat("computing", step=3, steps=35)      # the denoising loop
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

Phase = Literal["starting", "computing", "waiting", "done"]

_PHASES: tuple[Phase, ...] = ("starting", "computing", "waiting", "done")
_CODES = {phase: code for code, phase in enumerate(_PHASES)}

# Native alignment: the clock is one aligned eight-byte store, which a reader never sees half written.
_FIELDS = struct.Struct("@QQdIIII")
# A cache line each, so that ranks do not slow each other down.
_SLOT_BYTES = 64

_current: ContextVar[Heartbeat] = ContextVar("heartbeat")


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one slot said when it was read."""

    beats: int
    waits: int
    """Collectives entered so far. Ranks of one group enter the same ones, so fewer means further behind."""
    time: float
    """`time.monotonic()` of the last beat, a clock that all processes of a machine share."""
    phase: Phase
    ready: bool
    """Whether the rank has ever said "computing": its start is over."""
    step: int
    """Steps finished, of `steps`; 0 of 0 until the first step."""
    steps: int

    def __str__(self) -> str:
        where = {"waiting": "waiting in a collective"}.get(self.phase, self.phase)
        return f"{where}, step {self.step} of {self.steps}" if self.steps else where


class Heartbeat:
    """The writing side: one rank's slot."""

    __slots__ = ("_beats", "_memory", "_offset", "_phase", "_ready", "_step", "_steps", "_wait", "_waits")

    def __init__(self, memory: mmap.mmap | bytearray, rank: int) -> None:
        self._memory = memory
        self._offset = rank * _SLOT_BYTES
        self._beats = self._waits = self._ready = self._step = self._steps = 0
        self._phase = _CODES["starting"]
        self._wait = _Wait(self)
        self.beat()

    @classmethod
    def open(cls, path: Path, rank: int) -> Heartbeat:
        """This rank's slot in the file that `HeartbeatFile.create` made."""
        return cls(_map(path), rank)

    @classmethod
    def unshared(cls) -> Heartbeat:
        """A heartbeat in this process's own memory: for one process alone, or one that watches itself."""
        return cls(bytearray(_SLOT_BYTES), 0)

    def beat(self, phase: Phase | None = None, *, step: int | None = None, steps: int | None = None) -> None:
        """Say that this rank moves. What is left out stays as it was.

        The first "computing" ends the start, where a longer timeout holds.
        """
        if phase is not None:
            self._phase = _CODES[phase]
            self._ready |= phase == "computing"
        if step is not None:
            self._step = step
        if steps is not None:
            self._steps = steps
        self._write()

    def waiting(self) -> _Wait:
        """Context manager around a collective. If the collective raises, the slot goes on saying "waiting",
        so that its error is told from the error of the rank that it waited for."""
        return self._wait

    def read(self) -> Pulse:
        """This rank's own slot."""
        return _read(self._memory, self._offset)

    def _write(self) -> None:
        self._beats += 1
        # In two steps: pack_into clears the slot before it fills it, and a reader in between would see a rank
        # that has rested since the machine was started.
        self._memory[self._offset : self._offset + _FIELDS.size] = _FIELDS.pack(
            self._beats,
            self._waits,
            time.monotonic(),
            self._phase,
            self._ready,
            self._step,
            self._steps,
        )


class _Wait:
    """One object per heartbeat, entered again for every collective: nothing is allocated on the way."""

    __slots__ = ("_before", "_depth", "_heartbeat")

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._depth = 0
        self._before = 0

    def __enter__(self) -> None:
        heartbeat = self._heartbeat
        if self._depth == 0:
            self._before = heartbeat._phase
            heartbeat._phase = _CODES["waiting"]
        self._depth += 1
        heartbeat._waits += 1
        heartbeat._write()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if kind is None and self._depth == 0:
            self._heartbeat._phase = self._before
            self._heartbeat._write()


class HeartbeatFile:
    """The reading side: all slots of a group."""

    def __init__(self, path: Path, world_size: int) -> None:
        self._memory = _map(path)
        self._world_size = world_size

    @classmethod
    def create(cls, path: Path, world_size: int) -> HeartbeatFile:
        """A new file in which every rank is starting, as of now."""
        path.write_bytes(bytes(world_size * _SLOT_BYTES))
        slots = cls(path, world_size)
        for rank in range(world_size):
            Heartbeat(slots._memory, rank)
        return slots

    def read(self) -> list[Pulse]:
        """One reading of every rank, in rank order."""
        return [_read(self._memory, rank * _SLOT_BYTES) for rank in range(self._world_size)]

    def close(self) -> None:
        self._memory.close()


def current_heartbeat() -> Heartbeat:
    """The heartbeat of the rank that this process is; in an ordinary process one that nobody watches.

    A bare `threading.Thread` does not inherit it: run the thread's work in `contextvars.copy_context()`.
    """
    return _current.get(None) or Heartbeat.unshared()


@contextmanager
def heartbeat_of_this_process(heartbeat: Heartbeat) -> Iterator[None]:
    """Within the block, `current_heartbeat()` is this one."""
    token = _current.set(heartbeat)
    try:
        yield
    finally:
        _current.reset(token)


def find_stalled(
    pulses: Sequence[Pulse],
    now: float,
    *,
    step_timeout: float,
    init_timeout: float,
    is_stopped: Callable[[int], bool] = lambda rank: False,
) -> int | None:
    """The rank to blame for a stall, or None while the group moves.

    A rank is silent when its slot is older than `step_timeout` (s), or `init_timeout` (s) until every rank
    has computed once. Blamed is, among the silent ranks, one that a signal stopped; else one that does not
    wait; else, once all that are not done wait in silence, one that is furthest behind.
    """
    timeout = step_timeout if all(pulse.ready for pulse in pulses) else init_timeout
    alive = [rank for rank, pulse in enumerate(pulses) if pulse.phase != "done"]
    silent = [rank for rank in alive if now - pulses[rank].time > timeout]
    at_fault = [rank for rank in silent if is_stopped(rank)]
    at_fault = at_fault or [rank for rank in silent if pulses[rank].phase != "waiting"]
    if not at_fault and len(silent) == len(alive):
        at_fault = silent
    return min(at_fault, key=lambda rank: (pulses[rank].waits, pulses[rank].time), default=None)


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _read(memory: mmap.mmap | bytearray, offset: int) -> Pulse:
    beats, waits, clock, code, ready, step, steps = _FIELDS.unpack_from(memory, offset)
    return Pulse(beats, waits, clock, _PHASES[code], bool(ready), step, steps)
