"""The registry: model class -> family, and from there its plan, its skeleton and what they resolve to.

A family is a module with the names of `Family`, one module for each model class. Its functions take complete
configs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from armillary.checkpoint.dtypes import BY_NAME, DType
from armillary.errors import CheckpointError, PlanError, Problem, Refusals, list_choices
from armillary.layout import Layout
from armillary.models.family import Family
from armillary.plan.declared import declared_plan
from armillary.plan.draft import EXAMPLE, drafted
from armillary.plan.explain import match_key
from armillary.plan.heads import counted_heads, inferred_heads
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan, resolve_plan
from armillary.plan.skeleton import Parameter, Skeleton

_FAMILIES = {
    "AuraFlowTransformer2DModel": "auraflow",
    "ChromaTransformer2DModel": "chroma",
    "CogVideoXTransformer3DModel": "cogvideox",
    "Cosmos3OmniTransformer": "cosmos3",
    "Flux2Transformer2DModel": "flux2",
    "FluxTransformer2DModel": "flux",
    "HiDreamImageTransformer2DModel": "hidream",
    "HunyuanVideo15Transformer3DModel": "hunyuan_video15",
    "HunyuanVideoTransformer3DModel": "hunyuan_video",
    "LTX2VideoTransformer3DModel": "ltx2",
    "LTXVideoTransformer3DModel": "ltx",
    "MiniMaxH3Transformer3DModel": "minimax_h3",
    "QwenImage21Transformer2DModel": "qwen_image21",
    "QwenImageTransformer2DModel": "qwen_image",
    "SD3Transformer2DModel": "sd3",
    "WanTransformer3DModel": "wan",
    "WanVACETransformer3DModel": "wan_vace",
    "ZImageTransformer2DModel": "z_image",
}


def known_classes() -> list[str]:
    """Names of the model classes with a registered plan."""
    return sorted(_FAMILIES)


def family_of(model: object) -> Family | None:
    """The family of a model, a class or a class name, None for one that is not registered.

    A subclass belongs to the family of its parent.
    """
    names = [model] if isinstance(model, str) else [base.__name__ for base in _class_of(model).__mro__]
    home = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    return cast(Family, importlib.import_module(f"armillary.models.{home}")) if home else None


def families() -> dict[str, Family]:
    """Every registered family by the name of its model class."""
    return {name: cast(Family, family_of(name)) for name in known_classes()}


def plan_for(model: object) -> ParallelPlan:
    """The plan for a model, a model class or a class name.

    A class of its own that carries `_tp_plan` or a `_get_tp_plan()` method (as diffusers' classes do) is
    understood as it is, and where a class declares `_cp_plan`, that is the context plan.

    Raises `PlanError` that shows how to write one when there is none.
    """
    name = model if isinstance(model, str) else _class_of(model).__name__
    plan = _known_plan(family_of(model), None if isinstance(model, str) else declared_plan(model))
    if plan is None:
        raise PlanError(no_plan(name))
    return plan


def _known_plan(family: Family | None, declared: ParallelPlan | None) -> ParallelPlan | None:
    """The family's entries before those of the class, with the context that the class declares."""
    if family is None:
        return declared
    if declared is None or not declared.context:
        return family.PLAN
    return family.PLAN.with_context(declared.context, source=next(iter(declared.context_sources.values())))


def no_plan(name: str, layers: Iterable[str] = ()) -> Problem:
    """What a class without a plan is told: how to write one, in terms of its own `layers` where known."""
    entries = drafted(layers) or EXAMPLE
    example = json.dumps({key: entries[key] for key in list(entries)[:3]}).removesuffix("}")
    return Problem(
        "no-plan",
        f"{name} has no registered plan; {len(known_classes())} classes have one (`armillary check --all`)",
        f"write one into plan.json, {example}, ...}}, hold it against the checkpoint with "
        "`armillary check MODEL --plan plan.json`, and pass it as plan= or --plan; see docs/plans.md",
    )


def skeleton_for(model_class: str, config: Mapping[str, Any], dtype: str = "float32") -> Skeleton:
    """A skeleton from a config alone: every parameter in `dtype`, fp32-kept modules in float32.

    Where a family does not write its parameters down, its class is built on meta, which imports diffusers.

    Raises:
        PlanError: a class that is not registered.
        CheckpointError: a config that no model of the class can have; all of its faults.
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
    if not hasattr(family, "parameters"):
        from armillary.models.meta import skeleton_on_meta

        return skeleton_on_meta(model_class, config, dtype)
    full = complete(family, config)
    if problems := list(family.config_problems(full)):
        raise CheckpointError(problems)
    parameters = {}
    for name, shape, kind in family.parameters(full):
        held = held_dtype(name, BY_NAME[dtype], family.FP32_MODULES)
        parameters[name] = Parameter(shape=shape, dtype=held.name, itemsize=held.itemsize, kind=kind)
    return Skeleton(model_class=model_class, config=full, parameters=parameters, heads=family.heads(full))


def complete(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what its class assumes where it is silent."""
    return {**family.DEFAULTS, **{key: value for key, value in config.items() if not key.startswith("_")}}


def held_dtype(name: str, dtype: DType, fp32_modules: Collection[str]) -> DType:
    """float32 for the parameters of modules that a class keeps in it, `dtype` for the others.

    A module is kept when it is any part of the parameter's path, which is how diffusers reads
    `_keep_in_fp32_modules`.
    """
    return dtype if set(name.split(".")).isdisjoint(fp32_modules) else BY_NAME["float32"]


def skeleton_of(model: Any) -> Skeleton:
    """The skeleton of a live or meta model, with the head facts of its family, or those of its modules."""
    skeleton = replace(Skeleton.of_model(model), declared=declared_plan(model))
    if family := family_of(model):
        return with_facts(skeleton, family)
    skeleton = replace(skeleton, counted=counted_heads(model))
    return replace(skeleton, heads=inferred_heads(skeleton))


def with_facts(skeleton: Skeleton, family: Family) -> Skeleton:
    """A skeleton with what its family knows from the config: head counts, and the parts of fused layers."""
    config = complete(family, skeleton.config)
    fused = family.fused(config) if hasattr(family, "fused") else {}
    blocks = {path: parts for key, parts in fused.items() for path in match_key(key, skeleton.tree).paths}
    return replace(skeleton, heads=family.heads(config), blocks={**skeleton.blocks, **blocks})


def resolve(
    model_or_skeleton: object,
    layout: Layout,
    *,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    model_class: type | None = None,
) -> ResolvedPlan:
    """What every rank of `layout` holds of a model; nothing is read, allocated or started.

    Args:
        model_or_skeleton: a live model, a model on meta, or a `Skeleton`.
        layout: the degrees.
        plan: replaces the registered plan.
        overrides: merged into the plan key by key; None removes a key.
        model_class: the class itself, which may declare plans; a skeleton knows its name only.

    Raises:
        PlanError: the plan does not describe the model.
        LayoutError: the model cannot be split so; the legal degrees are named.
    """
    skeleton = (
        model_or_skeleton if isinstance(model_or_skeleton, Skeleton) else skeleton_of(model_or_skeleton)
    )
    of = model_class or (
        skeleton.model_class if isinstance(model_or_skeleton, Skeleton) else model_or_skeleton
    )
    chosen = merged_plan(skeleton, plan=plan, overrides=overrides, model=of)
    # one rank splits nothing, so that a class without a plan is no obstacle to it
    if layout.tp > 1 and plan is None and not chosen.entries:
        raise PlanError(no_plan(skeleton.model_class, skeleton.modules))
    return resolve_plan(skeleton, chosen, layout)


def merged_plan(
    skeleton: Skeleton,
    *,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    model: object = None,
) -> ParallelPlan:
    """The registered plan with what `config.json` and then `overrides` lay over it; `plan` replaces the first
    two. Empty for a class without any.

    Args:
        model: the model or its class, where that is at hand; a skeleton knows its name only.

    Raises `PlanError` with everything that is wrong with what is merged.
    """
    changes: dict[str, Any] = {"overrides": overrides}
    if plan is None:
        declared = skeleton.declared or (declared_plan(model) if isinstance(model, type) else None)
        known = _known_plan(family_of(skeleton.model_class if model is None else model), declared)
        changes = {"config.json": skeleton.config.get("parallel_plan"), **changes}
    chosen = known or ParallelPlan({}) if plan is None else _as_plan(plan)
    refusals = Refusals()
    for source, change in changes.items():
        with refusals.collect():
            chosen = chosen.merge(change, source=source)
    refusals.raise_if_any()
    return chosen


def _as_plan(plan: ParallelPlan | Mapping[str, object]) -> ParallelPlan:
    return plan if isinstance(plan, ParallelPlan) else ParallelPlan({}).merge(plan, source="plan")


def _class_of(model: object) -> type:
    return model if isinstance(model, type) else type(model)
