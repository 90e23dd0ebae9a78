"""`ParallelPlan`: which parameter is split how. Pure data; `resolve` holds it against a skeleton."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from armillary.errors import PlanError, Problem, Refusals
from armillary.plan.context import ContextEntry, context_to_json, parse_context
from armillary.plan.explain import did_you_mean, near
from armillary.plan.styles import Entry, Optional, entry_to_json, parse_entry

SECTIONS = ("class", "tensor", "context")
"""The keys of a plan that is written in sections: the class it is for, its entries, its context entries."""
T = TypeVar("T")


@dataclass(frozen=True)
class ParallelPlan:
    """Keys are module paths, `*` standing for every block of a list; values are styles.

    `ParallelPlan({"layers.*.mlp.gate_proj": Optional("colwise"), "layers.*.mlp.up_proj": "colwise"})`

    Args:
        entries: module path to style; a style may be an object, its name, or diffusers' marker. In place of
            that also what `to_json` writes.
        context: where the sequence is split and gathered, as diffusers' `_cp_plan` says it.
        source: where the entries come from, for messages ("overrides", a file name, ...).

    Raises `PlanError` with every wrong key or style at once.
    """

    entries: Mapping[str, Entry]
    context: Mapping[str, ContextEntry | Optional] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    context_sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    model_class: str | None = field(default=None, compare=False)
    """The class that the plan, or what was merged into it, says it is for."""

    def __init__(
        self,
        entries: Mapping[str, object],
        context: Mapping[str, Any] | None = None,
        *,
        source: str = "plan",
    ) -> None:
        parts = _parts(entries, source)
        refusals = Refusals()
        tensor, context_entries = parts.parsed(refusals, context, removes=False)
        refusals.raise_if_any()
        self._set(
            tensor,
            context_entries,
            {key: parts.source(key) for key in tensor},
            {key: parts.context_source(key) for key in context_entries},
            parts.model_class,
        )

    def _set(
        self,
        entries: Mapping[str, Entry],
        context: Mapping[str, ContextEntry | Optional],
        sources: Mapping[str, str],
        context_sources: Mapping[str, str],
        model_class: str | None,
    ) -> None:
        object.__setattr__(self, "entries", MappingProxyType(dict(entries)))
        object.__setattr__(self, "context", MappingProxyType(dict(context)))
        object.__setattr__(self, "sources", MappingProxyType(dict(sources)))
        object.__setattr__(self, "context_sources", MappingProxyType(dict(context_sources)))
        object.__setattr__(self, "model_class", model_class)

    def merge(
        self, overrides: Mapping[str, object] | ParallelPlan | None, *, source: str = "overrides"
    ) -> ParallelPlan:
        """This plan with `overrides` laid over it key by key; `None` as a value removes a key.

        `overrides` may be written as `to_json` writes a plan. Where it knows itself where its keys stand (a
        `PlanFile` does), messages say that instead of `source`.

        Raises `PlanError` with every wrong key or style of the overrides at once.
        """
        if overrides is None:
            return self
        parts = _parts(overrides, source)
        refusals = Refusals()
        refusals.add(PlanError, parts.not_there(self))
        tensor, context = parts.parsed(refusals)
        refusals.raise_if_any()
        merged = ParallelPlan({})
        merged._set(
            _laid_over(self.entries, parts.tensor, tensor),
            _laid_over(self.context, parts.context, context),
            _laid_over(self.sources, parts.tensor, {key: parts.source(key) for key in tensor}),
            _laid_over(self.context_sources, parts.context, {k: parts.context_source(k) for k in context}),
            parts.model_class or self.model_class,
        )
        return merged

    def with_context(self, context: Mapping[str, Any], *, source: str = "plan") -> ParallelPlan:
        """The same entries with this context plan."""
        return ParallelPlan({}, context, source=source).merge(self, source="plan")

    def label(self, key: str) -> str:
        """How messages name a key of this plan."""
        return _label(key, self.sources[key])

    def context_label(self, key: str) -> str:
        """How messages name a key of its context part."""
        return _label(key, self.context_sources[key], "context key")

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object that `ParallelPlan(...)`, `overrides=` and plan files read back.

        Entries alone are written as they are; with a context, or for a class, in sections.
        """
        entries = {key: entry_to_json(entry) for key, entry in self.entries.items()}
        if not self.context and self.model_class is None:
            return entries
        sections = {"class": self.model_class} if self.model_class else {}
        context = {key: context_to_json(entry) for key, entry in self.context.items()}
        return {**sections, "tensor": entries, **({"context": context} if context else {})}

    @classmethod
    def from_json(cls, written: Mapping[str, Any], *, source: str = "plan") -> ParallelPlan:
        """The plan that `to_json` wrote."""
        return cls(written, source=source)

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class _Parts:
    """A plan as it was written, taken apart but not judged yet."""

    tensor: Mapping[Any, object]
    context: Mapping[Any, object]
    model_class: str | None
    whole: str
    """Where all of it comes from."""
    sources: Mapping[Any, str]
    """The same for single keys, where it is known."""
    context_sources: Mapping[Any, str]

    def source(self, key: object) -> str:
        return self.sources.get(key, self.whole)

    def context_source(self, key: object) -> str:
        return self.context_sources.get(key, self.whole)

    def label(self, key: object) -> str:
        return _label(key, self.source(key))

    def context_label(self, key: object) -> str:
        return _label(key, self.context_source(key), "context key")

    def parsed(
        self, refusals: Refusals, context: Mapping[str, Any] | None = None, *, removes: bool = True
    ) -> tuple[dict[str, Entry], dict[str, ContextEntry | Optional]]:
        """Both parts, without the keys to remove where `removes`."""
        tensor: dict[str, Entry] = {}
        sequence: dict[str, ContextEntry | Optional] = {}
        with refusals.collect():
            tensor = _parse(_kept(self.tensor, removes), parse_entry, self.label)
        written = _kept({**self.context, **(context or {})}, removes)
        with refusals.collect():
            sequence = _parse(written, parse_context, self.context_label, model="")
        return tensor, sequence

    def not_there(self, plan: ParallelPlan) -> list[Problem]:
        """Keys to remove that `plan` does not have."""
        return [
            Problem(
                "override-removes",
                f"{label(key)} is not in the plan, so it cannot be removed",
                f"{did_you_mean(near(str(key), known))}drop it",
            )
            for written, known, label in (
                (self.tensor, plan.entries, self.label),
                (self.context, plan.context, self.context_label),
            )
            for key, value in written.items()
            if value is None and key not in known
        ]


def _parse(
    written: Mapping[Any, object],
    parse: Callable[[object], T],
    label: Callable[[object], str],
    model: str | None = None,
) -> dict[str, T]:
    """The values of all keys; `model` is a key that means the model itself."""
    parsed: dict[str, T] = {}
    problems: list[Problem] = []
    for key, value in written.items():
        if not isinstance(key, str) or not (key == model or all(key.split("."))):
            fix = 'write a dotted path such as "layers.*.mlp.up_proj"'
            problems.append(Problem("plan-key", f"{label(key)} is not a module path", fix))
        else:
            try:
                parsed[key] = parse(value)
            except PlanError as error:
                found = (Problem(p.rule, f"{label(key)}: {p.message}", p.fix) for p in error.problems)
                problems.extend(found)
    if problems:
        raise PlanError(problems)
    return parsed


def refuse_written(written: Mapping[str, object], *, source: str) -> None:
    """Raise `PlanError` with everything that is wrong with overrides before any plan or model is known."""
    refusals = Refusals()
    _parts(written, source).parsed(refusals)
    refusals.raise_if_any()


def _parts(written: object, source: str) -> _Parts:
    """Take a plan apart that is written as entries alone, or in sections."""
    if isinstance(written, ParallelPlan):
        sources = written.sources, written.context_sources
        return _Parts(written.entries, written.context, written.model_class, source, *sources)
    _require_object(written, source)
    assert isinstance(written, Mapping)
    known = getattr(written, "sources", {}), getattr(written, "context_sources", {})
    sections = [written.get("tensor"), written.get("context")]
    if not written.keys() <= {*SECTIONS} or not any(isinstance(section, Mapping) for section in sections):
        return _Parts(written, {}, None, source, *known)
    model_class = written.get("class")
    if not isinstance(model_class, str | None):
        raise PlanError(Problem("plan-class", f"{source}: class {model_class!r} is not a name", "write text"))
    for name, section in zip(("tensor", "context"), sections, strict=True):
        _require_object({} if section is None else section, f"{source}: {name}")
    return _Parts(sections[0] or {}, sections[1] or {}, model_class, source, *known)


def _kept(written: Mapping[Any, object], removes: bool) -> Mapping[Any, object]:
    # a key that is no path stays, to be told
    return {k: v for k, v in written.items() if v is not None or not removes or not isinstance(k, str)}


def _laid_over(below: Mapping[str, T], written: Mapping[Any, object], above: Mapping[str, T]) -> dict[str, T]:
    removed = {key for key, value in written.items() if value is None}
    return {key: entry for key, entry in {**below, **above}.items() if key not in removed}


def _require_object(entries: object, source: str) -> None:
    if not isinstance(entries, Mapping):
        raise PlanError(
            Problem(
                "plan-form",
                f"{source}: {entries!r} is not a plan",
                'write an object of module paths and styles: {"layers.*.mlp.up_proj": "colwise"}',
            )
        )


def _label(key: object, source: str, kind: str = "plan key") -> str:
    return f"{kind} {key!r}" if source == "plan" else f"{kind} {key!r} ({source})"
