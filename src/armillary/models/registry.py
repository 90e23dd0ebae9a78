"""The registry: model class -> family, and from there its plan, its skeleton and what they resolve to.

A family is a module with the same five names: `PLAN`, `heads(config)`, `parameters(config)`,
`DEFAULTS` (what the class assumes where a config is silent) and `FP32_MODULES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from armillary.errors import PlanError, Problem, list_choices
from armillary.layout import Layout
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan, resolve_plan
from armillary.plan.skeleton import HeadGroup, Parameter, Skeleton

_FAMILIES = {"Cosmos3OmniTransformer": "armillary.models.cosmos3"}


class Family(Protocol):
    """What a family module offers."""

    PLAN: ParallelPlan
    DEFAULTS: Mapping[str, Any]
    FP32_MODULES: tuple[str, ...]

    def heads(self, config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
        """Head facts of a config."""
        ...

    def parameters(self, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(name, shape, kind) of every parameter of a config."""
        ...


def known_classes() -> list[str]:
    """Names of the model classes with a registered plan."""
    return sorted(_FAMILIES)


def family_of(model_class: str) -> Family | None:
    """The family of a model class name, None for one that is not registered."""
    home = _FAMILIES.get(model_class)
    return cast(Family, importlib.import_module(home)) if home else None


def plan_for(model: object) -> ParallelPlan:
    """The plan for a model, a model class or a class name.

    A class of its own that carries `_tp_plan` (as diffusers' classes do) is understood as it is.
    Raises `PlanError` naming the known classes when there is none.
    """
    cls = model if isinstance(model, type) else type(model)
    name = model if isinstance(model, str) else cls.__name__
    if family := family_of(name):
        return family.PLAN
    declared = None if isinstance(model, str) else getattr(cls, "_tp_plan", None)
    if declared:
        return ParallelPlan(declared, getattr(cls, "_cp_plan", None), source=f"{name}._tp_plan")
    raise PlanError(
        Problem(
            "no-plan",
            f"{name} has no registered plan",
            f"pass plan=ParallelPlan({{...}}); registered: {list_choices(known_classes())}",
        )
    )


def skeleton_for(
    model_class: str, config: Mapping[str, Any], dtype: str = "float32", itemsize: int = 4
) -> Skeleton:
    """A skeleton from a config alone: every parameter in `dtype`, fp32-kept modules in float32.

    Raises `PlanError` for a class that is not registered.
    """
    family = family_of(model_class)
    if family is None:
        raise PlanError(
            Problem(
                "unknown-class",
                f"{model_class} is not a model class Armillary knows",
                f"known classes: {list_choices(known_classes())}",
            )
        )
    full = {**family.DEFAULTS, **{key: value for key, value in config.items() if key[0] != "_"}}
    parameters = {}
    for name, shape, kind in family.parameters(full):
        kept = name.startswith(tuple(f"{module}." for module in family.FP32_MODULES))
        parameters[name] = Parameter(
            shape=shape,
            dtype="float32" if kept else dtype,
            itemsize=4 if kept else itemsize,
            kind=kind,
        )
    return Skeleton(model_class=model_class, config=full, parameters=parameters, heads=family.heads(full))


def skeleton_of(model: Any) -> Skeleton:
    """The skeleton of a live or meta model, with the head facts of its family."""
    family = family_of(type(model).__name__)
    return Skeleton.of_model(model, family.heads(dict(model.config)) if family else ())


def resolve(
    model_or_skeleton: object,
    layout: Layout,
    *,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> ResolvedPlan:
    """What every rank of `layout` holds of a model; nothing is read, allocated or started.

    Args:
        model_or_skeleton: a live model, a model on meta, or a `Skeleton`.
        layout: the degrees.
        plan: replaces the registered plan.
        overrides: merged into the plan key by key; None removes a key.

    Raises:
        PlanError: the plan does not describe the model.
        LayoutError: the model cannot be split so; the legal degrees are named.
    """
    skeleton = (
        model_or_skeleton if isinstance(model_or_skeleton, Skeleton) else skeleton_of(model_or_skeleton)
    )
    return resolve_plan(
        skeleton, _chosen_plan(model_or_skeleton, skeleton, layout, plan).merge(overrides), layout
    )


def _chosen_plan(
    model_or_skeleton: object,
    skeleton: Skeleton,
    layout: Layout,
    plan: ParallelPlan | Mapping[str, object] | None,
) -> ParallelPlan:
    if plan is not None:
        return plan if isinstance(plan, ParallelPlan) else ParallelPlan(plan)
    try:
        plan = plan_for(skeleton.model_class if skeleton is model_or_skeleton else model_or_skeleton)
    except PlanError:
        if layout.tp > 1:
            raise
        plan = ParallelPlan({})  # one rank splits nothing, so a class without a plan is no obstacle
    return plan.merge(skeleton.config.get("parallel_plan"), source="config.json")
