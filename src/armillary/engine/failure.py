"""How a rank that fails is told: what it writes, whose failure came first, and the error raised for it.

When one rank fails, the collectives of the others fail too, a moment later. The first one is the news.
"""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from armillary import errors
from armillary.engine.heartbeat import Pulse
from armillary.errors import ArmillaryError, EngineError, Problem

_TAIL_LINES = 20


class RankError(EngineError):
    """A rank raised, died or stalled. `rank` is the one that did it first."""

    def __init__(self, problem: Problem, rank: int, traceback: str = "") -> None:
        super().__init__(problem)
        self.rank = rank
        self.traceback = traceback
        """The rank's own traceback (for a stall: where it stands) and the last lines it wrote, or ""."""


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
        partial.write_text(json.dumps(asdict(self)))
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> RaisedError | None:
        if not path.exists():
            return None
        fields: dict[str, Any] = json.loads(path.read_text())
        return cls(**{**fields, "problems": tuple(Problem(**problem) for problem in fields["problems"])})

    def as_error(self, rank: int, output: str) -> ArmillaryError:
        """The same class with the same problems for a user's mistake, else a `RankError`."""
        error_class = getattr(errors, self.kind, EngineError)
        if error_class is not EngineError:
            restored: ArmillaryError = error_class(self.problems)
            return restored
        problem = Problem("rank-raised", f"rank {rank} raised {self.summary}")
        return RankError(problem, rank, f"rank {rank}:\n{self.traceback}{output}")


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
    else:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        problem = Problem("rank-killed", f"rank {rank} was killed by {name}{hint}")
    return RankError(problem, rank, output)


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


def tail(path: Path, title: str) -> str:
    """The last lines of a file that a rank wrote under a heading, or "" when there are none."""
    if not path.exists() or not (lines := path.read_text(errors="replace").splitlines()):
        return ""
    return "\n".join([f"{title}:", *lines[-_TAIL_LINES:], ""])


def _public_name(error: BaseException) -> str:
    names = (base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
    return next(names, "")
