"""`ParallelPlan`: which parameter is split how. Pure data; `resolve` holds it against a skeleton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from armillary.errors import PlanError, Problem
from armillary.plan.styles import Entry, entry_to_json, parse_entry


@dataclass(frozen=True)
class ParallelPlan:
    """Keys are module paths, `*` standing for every block of a list; values are styles.

    `ParallelPlan({"layers.*.mlp.gate_proj": Optional("colwise"), "layers.*.mlp.up_proj": "colwise"})`

    Args:
        entries: module path to style; a style may be an object, its name, or diffusers' marker.
        context: where the sequence is split and gathered, as diffusers' `_cp_plan` says it.
        source: where the entries come from, for messages ("registered", a file name, ...).

    Raises `PlanError` with every wrong key or style at once.
    """

    entries: Mapping[str, Entry]
    context: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __init__(
        self,
        entries: Mapping[str, object],
        context: Mapping[str, Any] | None = None,
        *,
        source: str = "plan",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        parsed = _parse_entries(entries)
        origin = {key: (sources or {}).get(key, source) for key in parsed}
        object.__setattr__(self, "entries", MappingProxyType(parsed))
        object.__setattr__(self, "context", MappingProxyType(dict(context or {})))
        object.__setattr__(self, "sources", MappingProxyType(origin))

    def merge(self, overrides: Mapping[str, object] | None, *, source: str = "overrides") -> ParallelPlan:
        """This plan with `overrides` laid over it key by key; `None` as a value removes a key."""
        if not overrides:
            return self
        if unknown := [key for key, value in overrides.items() if value is None and key not in self.entries]:
            raise PlanError(
                [
                    Problem(
                        "override-removes", f"{key!r} is not in the plan, so it cannot be removed", "drop it"
                    )
                    for key in unknown
                ]
            )
        added = _parse_entries({key: value for key, value in overrides.items() if value is not None})
        kept = {key: entry for key, entry in self.entries.items() if key not in overrides}
        sources = {key: self.sources[key] for key in kept} | dict.fromkeys(added, source)
        return ParallelPlan({**kept, **added}, self.context, sources=sources)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object that `ParallelPlan(...)` reads back to an equal plan."""
        return {key: entry_to_json(entry) for key, entry in self.entries.items()}

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)


def _parse_entries(entries: Mapping[str, object]) -> dict[str, Entry]:
    parsed: dict[str, Entry] = {}
    problems: list[Problem] = []
    for key, value in entries.items():
        if not isinstance(key, str) or not key or not all(key.split(".")):
            problems.append(
                Problem(
                    "plan-key", f"{key!r} is not a module path", 'write a dotted path such as "layers.*.mlp"'
                )
            )
            continue
        try:
            parsed[key] = parse_entry(value)
        except PlanError as error:
            problems.extend(
                Problem(problem.rule, f"plan key {key!r}: {problem.message}", problem.fix)
                for problem in error.problems
            )
    if problems:
        raise PlanError(problems)
    return parsed
