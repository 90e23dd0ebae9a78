"""The context part of a plan: where the sequence is split, and where it is whole again. Pure data.

It says what diffusers' `_cp_plan` says, whose own objects are taken as they are:

    "": {"hidden_states": ContextInput(split_dim=1)}       an argument of the model is split
    "rope": {0: ContextInput(split_dim=0, split_output=True)}  an output of a module is split
    "proj_out": ContextOutput(gather_dim=1)                the output of a module is gathered

`Optional` goes round a whole entry (the module may be absent) or round a single input or output (the argument
may be absent or not given).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from armillary.errors import PlanError, Problem
from armillary.plan.explain import Match, match_key, unmatched, wildcard_problem
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import Optional


@dataclass(frozen=True)
class ContextInput:
    """An argument of a module, or with `split_output` one of its outputs: a rank keeps its own rows of it."""

    split_dim: int
    expected_dims: int | None = None
    """Number of dimensions of the tensor; another number is an error."""
    split_output: bool = False


@dataclass(frozen=True)
class ContextOutput:
    """An output of a module that is gathered from all ranks."""

    gather_dim: int
    expected_dims: int | None = None


Inputs: TypeAlias = Mapping[str | int, ContextInput | Optional]
"""Name of an argument, or number of an output -> how it is split."""
Outputs: TypeAlias = tuple[ContextOutput | Optional, ...]
"""One for each output."""
ContextEntry: TypeAlias = Inputs | Outputs

_DIFFUSERS: Mapping[str, type[ContextInput | ContextOutput]] = {
    "ContextParallelInput": ContextInput,
    "ContextParallelOutput": ContextOutput,
}
_FORM = 'write {"hidden_states": {"split_dim": 1}} to split, {"gather_dim": 1} to gather'


def parse_context(value: object) -> ContextEntry | Optional:
    """A context entry from objects of ours or of diffusers, or from its JSON form.

    Raises `PlanError` for anything else.
    """
    if isinstance(value, Optional):
        return value if isinstance(value.entry, Mapping | tuple) else Optional((parse_side(value.entry),))
    if isinstance(value, Mapping) and set(value) == {"optional"}:
        return Optional(parse_context(value["optional"]))
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(_output(parse_side(side)) for side in value)
    if isinstance(value, Mapping) and value and "gather_dim" not in value:
        return {_argument(name): _input(name, parse_side(side)) for name, side in value.items()}
    return (_output(parse_side(value)),)


def is_context(value: object) -> bool:
    """Whether a value that `Optional` is given belongs to a context plan, not to a style."""
    if isinstance(value, ContextInput | ContextOutput) or type(value).__name__ in _DIFFUSERS:
        return True
    if isinstance(value, Mapping):
        sides = (side.entry if isinstance(side, Optional) else side for side in value.values())
        return _is_side(value) or any(map(is_context, sides))
    return isinstance(value, list | tuple) and any(map(is_context, value))


def parse_inside(value: object) -> ContextEntry | ContextInput | ContextOutput | Optional:
    """What an `Optional` goes round: a whole entry, or a single input or output."""
    whole = isinstance(value, list | tuple | Mapping) and not (isinstance(value, Mapping) and _is_side(value))
    return parse_context(value) if whole else parse_side(value)


def _is_side(value: Mapping[Any, Any]) -> bool:
    return not value.keys().isdisjoint({"split_dim", "gather_dim"})


def parse_side(value: object) -> ContextInput | ContextOutput | Optional:
    """A single input or output."""
    if isinstance(value, ContextInput | ContextOutput):
        return value
    if isinstance(value, Optional) and isinstance(value.entry, ContextInput | ContextOutput):
        return value
    if isinstance(value, Mapping) and set(value) == {"optional"}:
        return Optional(parse_side(value["optional"]))
    if kind := _DIFFUSERS.get(type(value).__name__):
        value = {name: setting for name, setting in vars(value).items() if setting is not None}
    elif isinstance(value, Mapping):
        kind = ContextOutput if "gather_dim" in value else ContextInput
    if kind is None or not isinstance(value, Mapping):
        raise _not_context(value)
    return _made(kind, value)


def context_to_json(entry: ContextEntry | Optional | ContextInput | ContextOutput) -> Any:
    """The JSON form of an entry or of one of its parts; `parse_context` reads it back to an equal one."""
    if isinstance(entry, Optional):
        return {"optional": context_to_json(cast(ContextEntry, entry.entry))}
    if isinstance(entry, Mapping):
        return {str(name): context_to_json(side) for name, side in entry.items()}
    if isinstance(entry, tuple):
        sides = [context_to_json(side) for side in entry]
        return sides[0] if len(sides) == 1 else sides
    return {
        name: setting for name, setting in vars(entry).items() if setting is not None and setting is not False
    }


def _made(
    kind: type[ContextInput | ContextOutput], settings: Mapping[Any, Any]
) -> ContextInput | ContextOutput:
    known = kind.__dataclass_fields__
    first = next(iter(known))
    if not {first} <= set(settings) <= set(known):
        raise _not_context(settings)
    for name in known.keys() & settings.keys() - {"split_output"}:
        if type(settings[name]) is not int:
            raise _not_context(settings)
    if type(settings.get("split_output", False)) is not bool:
        raise _not_context(settings)
    return kind(**settings)


def _argument(name: object) -> str | int:
    """JSON writes the number of an output as text."""
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    if isinstance(name, str) and name:
        return int(name) if name.isdigit() else name
    raise PlanError(Problem("context-entry", f"{name!r} names no argument and no output", _FORM))


def _input(name: object, side: ContextInput | ContextOutput | Optional) -> ContextInput | Optional:
    inner = side.entry if isinstance(side, Optional) else side
    if not isinstance(inner, ContextInput):
        raise PlanError(Problem("context-entry", f"{name!r} is gathered where something is split", _FORM))
    if isinstance(_argument(name), int) != inner.split_output:
        fix = "a number means an output and needs split_output; a name means an argument and must not have it"
        what = f"{name!r} has split_output={inner.split_output}"
        raise PlanError(Problem("context-entry", what, fix))
    return cast("ContextInput | Optional", side)


def _output(side: ContextInput | ContextOutput | Optional) -> ContextOutput | Optional:
    inner = side.entry if isinstance(side, Optional) else side
    if not isinstance(inner, ContextOutput):
        raise PlanError(Problem("context-entry", f"{inner!r} splits, but names no argument", _FORM))
    return cast("ContextOutput | Optional", side)


def _not_context(value: object) -> PlanError:
    return PlanError(Problem("context-entry", f"{value!r} splits or gathers nothing", _FORM))


@dataclass(frozen=True)
class ResolvedContext:
    """The context part of a plan, held against a model, without an `Optional` round a whole entry. Single
    inputs and outputs keep theirs, because only a call shows whether they are given."""

    inputs: Mapping[str, Inputs]
    """Module path ("" is the model) -> what is split there, by all keys that match it together."""
    outputs: Mapping[str, Outputs]
    """Module path -> what is gathered there."""
    skipped: tuple[str, ...] = ()
    """Optional keys that match nothing."""

    @property
    def entries(self) -> Mapping[str, ContextEntry]:
        """Every module path that something is said of."""
        return {**self.outputs, **self.inputs}


def resolve_context(
    skeleton: Skeleton,
    context: Mapping[str, ContextEntry | Optional],
    label: Callable[[str], str],
    problems: list[Problem],
) -> ResolvedContext:
    """Find the modules of a context plan; what is wrong is added to `problems`.

    Headers do not show modules without parameters (a rotary embedding), nor the arguments of any: what only a
    model shows is left to a skeleton that was made from one. `label` names a key in messages.
    """
    inputs: dict[str, Inputs] = {}
    outputs: dict[str, Outputs] = {}
    skipped: list[str] = []
    for key, entry in context.items():
        inner = cast(ContextEntry, entry.entry if isinstance(entry, Optional) else entry)
        found = match_key(key, skeleton.whole_tree) if key else Match(("",))
        if wrong := wildcard_problem(label(key), key, skeleton.whole_tree) if key else None:
            problems.append(wrong)
        elif found.paths:
            for path in found.paths:
                if isinstance(inner, Mapping):  # the first block may have a key of its own beside that of all
                    inputs[path] = {**inputs.get(path, {}), **inner}
                else:
                    outputs[path] = inner
            problems.extend(_argument_problems(skeleton, label(key), found.paths[0], inner))
        elif isinstance(entry, Optional):
            skipped.append(key)
        elif skeleton.arguments:
            problems.append(unmatched(label(key), key, skeleton.whole_tree, skeleton.model_class))
    return ResolvedContext(inputs, outputs, tuple(skipped))


def _argument_problems(skeleton: Skeleton, label: str, path: str, entry: ContextEntry) -> Iterator[Problem]:
    """Arguments that a module does not have and that are not optional."""
    known = skeleton.arguments.get(path)
    if known is None or "**" in known or not isinstance(entry, Mapping):
        return
    for name, side in entry.items():
        if isinstance(name, str) and name not in known and not isinstance(side, Optional):
            what = f"{label}: {path or skeleton.model_class} has no argument {name!r}"
            yield Problem("context-argument", what, f"it has {', '.join(known)}; or wrap it in Optional(...)")
