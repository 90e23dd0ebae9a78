"""What `armillary check` has found, as data and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from armillary.errors import Problem
from armillary.layout import Layout
from armillary.plan.draft import drafted_for
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import Entry, Optional, entry_to_json


@dataclass(frozen=True)
class Rule:
    """One rule of a plan and what it found."""

    key: str
    style: str
    source: str
    matched: tuple[str, ...]
    """Paths of modules."""
    absent: int
    """Blocks of the wildcard that have none."""


@dataclass(frozen=True)
class Held:
    """A parameter, and how many bytes it has in all."""

    name: str
    nbytes: int
    why: str = ""
    """Of one that is replicated and is worth a word: why, or that nobody has decided it."""


@dataclass(frozen=True)
class CheckReport:
    """A plan held against a checkpoint."""

    folder: str
    skeleton: Skeleton
    plan: ParallelPlan
    layout: Layout
    rules: tuple[Rule, ...]
    split: tuple[Held, ...]
    replicated: tuple[Held, ...]
    skipped_optional: tuple[str, ...]
    bytes_per_rank: tuple[int, ...]
    """Weights on the device of each tp rank."""
    bytes_elsewhere: tuple[int, ...]
    """Weights that it keeps in host memory or reads from disk again."""
    legal_tp: tuple[int, ...]
    problems: tuple[Problem, ...]

    @property
    def title(self) -> str:
        """The class and where it is."""
        return f"{self.skeleton.model_class} in {self.folder}"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "ok": self.ok,
            "rules": [
                {"key": r.key, "style": r.style, "source": r.source, "matched": list(r.matched)}
                for r in self.rules
            ],
            "split": [{"name": held.name, "bytes": held.nbytes} for held in self.split],
            "replicated": [{"name": held.name, "bytes": held.nbytes} for held in self.replicated],
            "skipped_optional": list(self.skipped_optional),
            "bytes_per_rank": list(self.bytes_per_rank),
            "problems": problems_to_json(self.problems),
        }

    def plan_to_edit(self) -> dict[str, Any]:
        """The merged plan as JSON; a draft from the names of the layers where there is none."""
        return self.plan.to_json() if self.plan.entries else drafted_for(self.skeleton)


def problems_to_json(problems: tuple[Problem, ...]) -> list[dict[str, str]]:
    """Problems as `--json` prints them."""
    return [{"rule": p.rule, "message": p.message, "fix": p.fix} for p in problems]


@dataclass(frozen=True)
class Variant:
    """A registered plan against one config that it claims."""

    name: str
    legal_tp: tuple[int, ...]
    problems: tuple[Problem, ...]


def all_to_json(checked: Mapping[str, Iterable[Variant]]) -> dict[str, Any]:
    """The document that `check --all --json` prints."""
    return {
        "classes": [
            {
                "class": name,
                "variants": [
                    {
                        "name": v.name,
                        "legal_tp": list(v.legal_tp),
                        "problems": problems_to_json(v.problems),
                    }
                    for v in variants
                ],
            }
            for name, variants in checked.items()
        ]
    }


def style_text(entry: Entry) -> str:
    """An entry in a few words: "colwise", "packed_colwise [1, 1, 1]", "optional rowwise"."""
    if isinstance(entry, Optional):
        return f"optional {style_text(entry.style)}"
    written = entry_to_json(entry)
    if isinstance(written, str):
        return written
    ((name, argument),) = written.items()
    return f"{name} {argument if isinstance(argument, list) else ' '.join(argument)}"
