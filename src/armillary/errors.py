"""What can go wrong, as one tree, and the `Problem` that every message is made of.

ArmillaryError
├── PlanError         a plan that does not describe the model            exit code 2
├── LayoutError       degrees the model or the machine cannot do         exit code 2
├── CheckpointError   a folder that is not what its config says it is    exit code 2
├── RequestError      a generation that cannot be done as asked          exit code 2
└── EngineError       a rank raised, died or stalled                     exit code 4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, said so that it can be mended.

    `str(problem)` is one line: "tp=3 does not divide 64 query heads; use 1, 2, 4, 8, 16, 32 or 64".
    """

    rule: str
    """Short stable name of the rule, for programs: "heads-divide"."""
    message: str
    """The rule and the values that break it."""
    fix: str = ""
    """What to change; the legal values where they can be listed."""

    def __str__(self) -> str:
        line = f"{self.message}; {self.fix}" if self.fix else self.message
        return " ".join(line.split())


class ArmillaryError(Exception):
    """Base of all errors raised on purpose. `problems` holds every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(rule=type(self).__name__, message=problems)
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(dict.fromkeys(problems))
        )
        super().__init__(self.problems)  # the only argument, so that an error survives pickling

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class PlanError(ArmillaryError):
    """A plan that does not describe the model it is given."""


class LayoutError(ArmillaryError):
    """Degrees that the model or the machine cannot do."""


class CheckpointError(ArmillaryError):
    """A folder or repo that is not the checkpoint its config says it is."""


class RequestError(ArmillaryError):
    """A generation that cannot be done as asked."""


class EngineError(ArmillaryError):
    """A rank raised, died or stalled while the work was running."""

    exit_code = 4


def reason_of(error: BaseException) -> str:
    """What the system says was wrong, without the path that it adds; else the error's own words."""
    return str(getattr(error, "strerror", None) or error)


def list_choices(choices: Sequence[object]) -> str:
    """ "1, 2, 4 or 8": the words with which a fix names the legal values."""
    *others, last = map(str, choices or ["none"])
    return f"{', '.join(others)} or {last}" if others else last


class Refusals:
    """Gathers the problems of several checks, so that all are told at once.

    refusals = Refusals()
    with refusals.collect():
        layout_check()
    with refusals.collect():
        plan_check()
    refusals.raise_if_any()
    """

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._kinds: dict[type[ArmillaryError], None] = {}

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the problems of an `ArmillaryError` raised inside, instead of letting it out."""
        try:
            yield
        except EngineError:
            raise
        except ArmillaryError as error:
            self.add(type(error), error.problems)

    def add(self, kind: type[ArmillaryError], problems: Iterable[Problem]) -> None:
        """Keep problems that were found without raising."""
        found = list(problems)
        if found:
            self._problems.extend(found)
            self._kinds[kind] = None

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was kept so far."""
        return tuple(self._problems)

    def raise_if_any(self) -> None:
        """Raise what was kept: as its own class where there is only one, else as `ArmillaryError`."""
        if self._problems:
            kind = next(iter(self._kinds)) if len(self._kinds) == 1 else ArmillaryError
            raise kind(self._problems)
