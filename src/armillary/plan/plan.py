"""`ParallelPlan`: which parameter is split how. Pure data; `resolve` holds it against a skeleton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from armillary.errors import PlanError, Problem, Refusals
from armillary.plan.explain import did_you_mean, near
from armillary.plan.styles import Entry, entry_to_json, parse_entry


@dataclass(frozen=True)
class ParallelPlan:
    """Keys are module paths, `*` standing for every block of a list; values are styles.

    `ParallelPlan({"layers.*.mlp.gate_proj": Optional("colwise"), "layers.*.mlp.up_proj": "colwise"})`

    Args:
        entries: module path to style; a style may be an object, its name, or diffusers' marker.
        context: where the sequence is split and gathered, as diffusers' `_cp_plan` says it.
        source: where the entries come from, for messages ("overrides", a file name, ...).
        sources: the same for single keys.

    Raises `PlanError` with every wrong key or style at once.
    """

    entries: Mapping[str, Entry]
    context: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __init__(
        self,
        entries: Mapping[str, object],
        context: Mapping[str, Any] | None = None,
        *,
        source: str = "plan",
        sources: Mapping[str, str] | None = None,
    ) -> None:
        parsed = _parse_entries(entries, source)
        origin = {key: (sources or {}).get(key, source) for key in parsed}
        object.__setattr__(self, "entries", MappingProxyType(parsed))
        object.__setattr__(self, "context", MappingProxyType(dict(context or {})))
        object.__setattr__(self, "sources", MappingProxyType(origin))

    def merge(self, overrides: Mapping[str, object] | None, *, source: str = "overrides") -> ParallelPlan:
        """This plan with `overrides` laid over it key by key; `None` as a value removes a key.

        Raises `PlanError` with every wrong key or style of the overrides at once.
        """
        if overrides is None:
            return self
        _require_object(overrides, source)
        removed = [key for key, value in overrides.items() if value is None]
        refusals = Refusals()
        refusals.add(PlanError, [self._not_there(key, source) for key in removed if key not in self.entries])
        added: Mapping[str, Entry] = {}
        with refusals.collect():
            added = _parse_entries({k: v for k, v in overrides.items() if v is not None}, source)
        refusals.raise_if_any()
        merged = {key: entry for key, entry in {**self.entries, **added}.items() if key not in removed}
        return ParallelPlan(merged, self.context, sources={**self.sources, **dict.fromkeys(added, source)})

    def with_context(self, context: Mapping[str, Any]) -> ParallelPlan:
        """The same entries with this context plan."""
        return ParallelPlan(self.entries, context, sources=self.sources)

    def label(self, key: str) -> str:
        """How messages name a key of this plan."""
        return _label(key, self.sources[key])

    def to_json(self) -> dict[str, Any]:
        """The entries as a JSON object that `ParallelPlan(...)` reads back to equal ones."""
        return {key: entry_to_json(entry) for key, entry in self.entries.items()}

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)

    def _not_there(self, key: object, source: str) -> Problem:
        return Problem(
            "override-removes",
            f"{_label(key, source)} is not in the plan, so it cannot be removed",
            f"{did_you_mean(near(str(key), self.entries))}drop it",
        )


def _parse_entries(entries: Mapping[str, object], source: str) -> dict[str, Entry]:
    _require_object(entries, source)
    parsed: dict[str, Entry] = {}
    problems: list[Problem] = []
    for key, value in entries.items():
        if not isinstance(key, str) or not all(key.split(".")):
            problems.append(
                Problem(
                    "plan-key",
                    f"{_label(key, source)} is not a module path",
                    'write a dotted path such as "layers.*.mlp.up_proj"',
                )
            )
            continue
        try:
            parsed[key] = parse_entry(value)
        except PlanError as error:
            problems.extend(
                Problem(problem.rule, f"{_label(key, source)}: {problem.message}", problem.fix)
                for problem in error.problems
            )
    if problems:
        raise PlanError(problems)
    return parsed


def _require_object(entries: object, source: str) -> None:
    if not isinstance(entries, Mapping):
        raise PlanError(
            Problem(
                "plan-form",
                f"{source}: {entries!r} is not a plan",
                'write an object of module paths and styles: {"layers.*.mlp.up_proj": "colwise"}',
            )
        )


def _label(key: object, source: str) -> str:
    return f"plan key {key!r}" if source == "plan" else f"plan key {key!r} ({source})"
