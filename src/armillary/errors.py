"""What can go wrong, as one tree, and the `Problem` that every message is made of.

    ArmillaryError
    ├── PlanError         a plan that does not describe the model            exit code 2
    ├── LayoutError       degrees the model or the machine cannot do         exit code 2
    ├── CheckpointError   a folder that is not what its config says it is    exit code 2
    ├── RequestError      a generation that cannot be done as asked          exit code 2
    └── EngineError       a rank raised, died or stalled                     exit code 4
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        super().__init__("\n".join(map(str, self.problems)))


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


def list_choices(choices: Sequence[object]) -> str:
    """ "1, 2, 4 or 8": the words with which a fix names the legal values."""
    words = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "none"
