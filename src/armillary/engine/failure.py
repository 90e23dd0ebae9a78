"""How a rank that fails is told: what it writes, whose failure came first, and the error raised for it.

When one rank fails, the collectives of the others fail too, a moment later. The first one is the news.
"""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from armillary import errors
from armillary.engine.heartbeat import Pulse
from armillary.errors import ArmillaryError, EngineError, Problem


class RankError(EngineError):
    """A rank raised, died or stalled. `rank` is the one that did it first."""

    def __init__(
        self, problems: Problem | Iterable[Problem], rank: int, traceback: str = "", killed: bool = False
    ) -> None:
        super().__init__(problems)
        self.rank = rank
        self.traceback = traceback
        """The rank's own traceback (for a stall: where it stands) and the last lines it wrote, or ""."""
        self.killed = killed
        """Ended from outside (SIGKILL, SIGTERM), which says nothing against the work it did."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems[0], self.rank, self.traceback, self.killed)


@dataclass(frozen=True)
class RaisedError:
    """An exception that ended a rank, as it is handed from process to process."""

    when: float
    """`time.monotonic()` of the machine."""
    in_collective: bool
    """Raised out of a collective: most likely another rank's failure made it fail."""
    kind: str
    """Name of its class in `armillary.errors`, or "" for any other exception."""
    summary: str
    problems: tuple[Problem, ...]
    traceback: str

    @property
    def is_users_mistake(self) -> bool:
        return self.kind not in ("", EngineError.__name__)

    @classmethod
    def of(cls, error: BaseException, pulse: Pulse) -> RaisedError:
        """Describe an exception that this rank just caught, with the heartbeat it had then."""
        return cls(
            when=time.monotonic(),
            # Collectives called past parallel/collectives.py are known by gloo's and NCCL's own words.
            in_collective=pulse.phase == "waiting" or "/gloo/" in str(error) or "NCCL" in str(error),
            kind=_public_name(error),
            summary="".join(traceback.format_exception_only(error)).strip(),
            problems=error.problems if isinstance(error, ArmillaryError) else (),
            traceback="".join(traceback.format_exception(error)),
        )

    def write(self, path: Path) -> None:
        """Appears whole or not at all: the parent may look at any time."""
        partial = path.with_suffix(".partial")
        partial.write_text(self.to_json())
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> RaisedError | None:
        return cls.from_json(path.read_text()) if path.exists() else None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RaisedError:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "problems": tuple(Problem(**problem) for problem in fields["problems"])})

    def as_error(self, rank: int, output: str) -> ArmillaryError:
        """The same class with the same problems for a user's mistake, else a `RankError`."""
        if self.is_users_mistake:
            restored: ArmillaryError = getattr(errors, self.kind)(self.problems)
            return restored
        where = " in a collective" if self.in_collective else ""
        raised = Problem("rank-raised", f"rank {rank} raised{where} {self.summary}")
        return RankError(self.told_by(rank) or raised, rank, f"rank {rank}:\n{self.traceback}{output}")

    def told_by(self, rank: int) -> tuple[Problem, ...]:
        """The problems of an ArmillaryError with the rank before each."""
        return tuple(replace(problem, message=f"rank {rank}: {problem.message}") for problem in self.problems)


def exit_code_of(error: BaseException) -> int:
    """With which code a rank ends that raised this: 2 for a user's mistake, else 4."""
    return error.exit_code if isinstance(error, ArmillaryError) else EngineError.exit_code


def first_failure(exits: Mapping[int, int], raised: Mapping[int, RaisedError]) -> int:
    """Which rank failed first. `exits` are the codes of all ranks that failed, negative for a signal.

    An exception of a rank's own comes before a death without a word (NCCL's watchdog aborts the victims), and
    both before an exception out of a collective, which any failure elsewhere causes.
    """

    def order(rank: int) -> tuple[int, float]:
        error = raised.get(rank)
        return (1, 0.0) if error is None else (2 if error.in_collective else 0, error.when)

    return min(exits, key=order)


def died(rank: int, code: int, output: str) -> RankError:
    """A rank that ended without telling why; `code` as `subprocess` gives it."""
    if code >= 0:
        problem = Problem("rank-ended", f"rank {rank} ended with exit code {code} before its task was done")
        return RankError(problem, rank, output)
    name = signal.Signals(-code).name
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    problem = Problem("rank-killed", f"rank {rank} was killed by {name}{hint}")
    return RankError(problem, rank, output, killed=-code in (signal.SIGKILL, signal.SIGTERM))


def told_by_ranks(number: int, raised: RaisedError) -> ArmillaryError:
    """The error for what `torchrun.first_error` found on ranks that this process did not start."""
    if raised.in_collective:
        problem = Problem("rank-killed", f"a rank other than {number} was killed ({raised.summary})")
        return RankError(problem, number, raised.traceback, killed=True)
    return raised.as_error(number, output="")


def stalled(
    rank: int, pulse: Pulse, *, step_timeout: float, init_timeout: float, stopped: bool, stack: str
) -> RankError:
    """A rank that stopped beating; `stack` is where it stands, or "" when it could not say."""
    flag, timeout, what = (
        ("--step-timeout", step_timeout, "a step")
        if pulse.ready
        else ("--init-timeout", init_timeout, "starting")
    )
    where = "stopped by a signal" if stopped else str(pulse)
    message = f"rank {rank} has not moved for {timeout:g} s ({flag}), {where}"
    return RankError(Problem("rank-stalled", message, f"raise {flag} if {what} may take longer"), rank, stack)


def written(path: Path, title: str, lines: int | None = None) -> str:
    """What a rank wrote to a file (the last `lines` of it) under a heading, or "" when there is nothing."""
    text = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join([f"{title}:", *text[-lines if lines else 0 :], ""]) if text else ""


def _public_name(error: BaseException) -> str:
    names = (base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
    return next(names, "")
