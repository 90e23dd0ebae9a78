"""What `armillary check` does: a plan held against a checkpoint's own tensors, or every shipped plan against
the configs it claims. Of a folder configs and headers are read, and neither torch nor diffusers is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from armillary.checkpoint.index import read_object
from armillary.checkpoint.locate import is_here, locate, locate_configs
from armillary.checks.hub import read_hub_index
from armillary.checks.report import CheckReport, Held, Rule, Variant, style_text
from armillary.errors import ArmillaryError, CheckpointError, PlanError, Problem, Refusals
from armillary.layout import Layout
from armillary.models.described import class_named_in, describe, describe_index
from armillary.models.registry import families, family_of, merged_plan, no_plan, skeleton_for
from armillary.parallel.degrees import refuse_residency
from armillary.plan.context import context_to_json
from armillary.plan.degrees import legal_degrees
from armillary.plan.explain import key_of, match_key
from armillary.plan.file import read_plan
from armillary.plan.heads import inferred_heads
from armillary.plan.plan import ParallelPlan
from armillary.plan.ranges import cut
from armillary.plan.resolve import Examination, examine
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import PackedRowwise, Rowwise
from armillary.residency import Residency


def check(
    checkpoint: str | Path,
    layout: Layout | Mapping[str, Any] | None = None,
    *,
    subfolder: str | None = None,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | Path | None = None,
    residency: Residency | Mapping[str, Any] | None = None,
) -> CheckReport:
    """Hold the plan of a checkpoint against its tensors.

    Args:
        checkpoint: a folder of a model or of a pipeline, a hub id, or one that comes with the package.
        layout: degrees to check as well; without tp, what the plan would split is told all the same.
        subfolder: of the model in a pipeline; by default "transformer".
        plan: replaces the registered plan; `overrides`, or a file that holds some, are merged into it.
        residency: where weights live.

    What is wrong with the plan or the degrees is in the report. Raises `ArmillaryError` where there is
    nothing to hold against each other: a checkpoint without headers, a file that is no plan or one for
    another class, values that are no degrees; all of it.
    """
    refusals = Refusals()
    degrees, home, model, changes = Layout(), Residency(), None, None
    with refusals.collect():
        degrees = layout if isinstance(layout, Layout) else Layout(**(layout or {}))
    with refusals.collect():
        home = residency if isinstance(residency, Residency) else Residency(**(residency or {}))
    with refusals.collect():
        changes = read_plan(overrides) if isinstance(overrides, Path) else overrides
    with refusals.collect():
        model = _model(checkpoint, subfolder)
        chosen = merged_plan(model[1], plan=plan, overrides=changes)
    refusals.raise_if_any()
    assert model is not None, "without a problem there is a model"
    return _report(*model, chosen, degrees, home)


def _model(checkpoint: str | Path, subfolder: str | None) -> tuple[Path, Skeleton]:
    """The model's folder, and its skeleton with the dtypes that are stored."""
    here = is_here(checkpoint)
    top = locate(checkpoint) if here else locate_configs(str(checkpoint))
    if subfolder is None and not (top / "config.json").is_file() and (top / "transformer").is_dir():
        subfolder = "transformer"
    folder = locate(top, subfolder)
    if here or any(folder.glob("*.safetensors")):
        found = describe(folder).skeleton
    else:
        found = _on_hub(str(checkpoint), top.name, subfolder, folder)
    known = family_of(found.model_class) is not None
    return folder, found if known else replace(found, heads=inferred_heads(found))


def _on_hub(repo: str, revision: str, subfolder: str | None, folder: Path) -> Skeleton:
    """By the headers of a hub repo; where they cannot be read, by a config that tells all parameters."""
    try:
        return describe_index(read_hub_index(repo, revision, subfolder, folder)).skeleton
    except CheckpointError as error:
        config = read_object(folder / "config.json")
        name = class_named_in(config, folder)
        if not hasattr(family_of(name), "parameters") or error.problems[0].rule != "checkpoint-headers":
            raise
        return skeleton_for(name, config, dtype="bfloat16")


def _report(
    folder: Path, skeleton: Skeleton, plan: ParallelPlan, layout: Layout, residency: Residency
) -> CheckReport:
    found = examine(skeleton, plan, layout)
    if strange := [problem for problem in found.plan_problems if problem.rule == "plan-class"]:
        raise PlanError(strange)  # bad input: the rest would only say so key by key
    problems = [*found.plan_problems, *found.layout_problems, *_residency_problems(skeleton, residency)]
    if not plan.entries:
        problems.insert(0, no_plan(skeleton.model_class, skeleton.modules))
    on_device, elsewhere = _bytes(skeleton, found, layout.tp, residency)
    whole = (Held(name, p.nbytes) for name, p in skeleton.parameters.items() if name not in found.cuts)
    split = (Held(name, skeleton.parameters[name].nbytes) for name in found.cuts)
    return CheckReport(
        folder=str(folder),
        skeleton=skeleton,
        plan=plan,
        layout=layout,
        rules=tuple(_rules(plan, skeleton, found)),
        split=tuple(sorted(split, key=_large_first)),
        replicated=tuple(sorted(_explained(whole, skeleton, found), key=_large_first)),
        skipped_optional=found.skipped_optional,
        bytes_per_rank=on_device,
        bytes_elsewhere=elsewhere,
        legal_tp=legal_tp_of(found),
        problems=tuple(dict.fromkeys(problems)),
    )


def _rules(plan: ParallelPlan, skeleton: Skeleton, found: Examination) -> Iterator[Rule]:
    for key, entry in plan:
        match = found.claims.matches[key]
        yield Rule(key, style_text(entry), plan.sources[key], match.paths, match.absent)
    for key, side in plan.context.items():
        paths = match_key(key, skeleton.whole_tree).paths if key else (skeleton.model_class,)
        style = json.dumps(context_to_json(side))
        yield Rule(f"context {key}", style, plan.context_sources[key], paths, 0)


def _bytes(
    skeleton: Skeleton, found: Examination, tp: int, residency: Residency
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of weights of each tp rank, on the device and elsewhere; () for a degree that is not allowed."""
    segments = {segment for _, several in found.cuts.values() for segment in several}
    if not all(segment.allows(tp) for segment in segments):
        return (), ()
    family = family_of(skeleton.model_class)
    home = residency.on("cuda")  # "auto" is the host wherever a device has memory of its own
    away = family.moved(skeleton.parameters, home) if family and family.CONTEXT and home.moves else {}
    device, elsewhere = [0] * tp, [0] * tp
    shards = {key: cut(*key, tp) for key in set(found.cuts.values())}
    for name, parameter in skeleton.parameters.items():
        key = found.cuts.get(name)
        for rank in range(tp):
            part = parameter.nbytes
            if key is not None:
                part = shards[key].local_bytes(part, rank)
            (elsewhere if name in away else device)[rank] += part
    return tuple(device), tuple(elsewhere)


def _residency_problems(skeleton: Skeleton, residency: Residency) -> tuple[Problem, ...]:
    refusals = Refusals()
    with refusals.collect():
        refuse_residency(skeleton.model_class, False, residency)
    return refusals.problems


def _explained(whole: Iterable[Held], skeleton: Skeleton, found: Examination) -> Iterator[Held]:
    """Replicated parameters, with a word on those that a reader may have wanted split."""
    family = family_of(skeleton.model_class)
    reasons = family.REPLICATED if family else {}
    split_blocks = {_block(path, skeleton) for path in found.claims.styles} - {""}
    for held in whole:
        path = held.name.rpartition(".")[0]
        key = key_of(path, skeleton.tree)
        why = reasons.get(key, "")
        if isinstance(found.claims.styles.get(path), Rowwise | PackedRowwise):
            why = "added once, after the sum"
        elif not why and skeleton.parameters[held.name].kind == "linear" and held.name.endswith(".weight"):
            why = "no rule decides it" if _block(path, skeleton) in split_blocks else ""
        yield replace(held, why=why)


def _block(path: str, skeleton: Skeleton) -> str:
    """The key of the block that a module is in, empty outside blocks."""
    before, star, _ = key_of(path, skeleton.tree).partition("*")
    return before + star if star else ""


def _large_first(held: Held) -> tuple[int, str]:
    return -held.nbytes, held.name


def check_all() -> dict[str, tuple[Variant, ...]]:
    """Every registered plan against every config variant that its family names: model class -> variants.

    Classes that do not write their parameters down are built on meta, which imports diffusers.
    """
    return {
        name: tuple(_variant(name, variant, config) for variant, config in family.TINY.items())
        for name, family in families().items()
    }


def _variant(model_class: str, name: str, config: Mapping[str, Any]) -> Variant:
    try:
        skeleton = skeleton_for(model_class, config)
        found = examine(skeleton, merged_plan(skeleton), Layout())
    except ArmillaryError as error:
        return Variant(name, (), error.problems)
    return Variant(name, legal_tp_of(found), found.plan_problems)


def legal_tp_of(found: Examination) -> tuple[int, ...]:
    """The tp degrees that a model allows with a plan."""
    return tuple(legal_degrees({s: None for _, segments in found.cuts.values() for s in segments}))
