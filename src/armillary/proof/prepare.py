"""Everything about a proof that can be refused before a weight is read or a process is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from armillary.checkpoint.index import CheckpointIndex, read_object
from armillary.checkpoint.locate import is_here, locate, locate_configs
from armillary.engine.abilities import MODEL_CLASS, abilities
from armillary.engine.launch import rank_problems
from armillary.engine.prepare import DTYPES, Job, main_dtype, prepare as prepare_generation
from armillary.engine.torchrun import joined_group
from armillary.errors import LayoutError, Problem, Refusals, RequestError, list_choices
from armillary.layout import Layout
from armillary.models.described import class_named_in, describe_index
from armillary.models.registry import family_of, resolve
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.styles import PackedRowwise, Rowwise
from armillary.proof.case import Case
from armillary.proof.cut import depths
from armillary.proof.memory import fits
from armillary.residency import Residency

DEFAULTS: Mapping[str, Any] = {
    "prompt": "a robot arm pours tea beside a window",
    "size": "160x96",
    "num_frames": 9,
    "num_inference_steps": 4,
    "guidance_interval": "none",
    "seed": 0,
}
"""What is generated: small, with odd numbers of rows and columns of tokens; guidance as published."""
_FIXED = ("num_frames", "num_inference_steps", "guidance_interval")
"""Not for a distilled checkpoint, whose steps are fixed and which makes one picture."""
_SPLIT_INPUTS = (Rowwise, PackedRowwise)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of `verify` besides checkpoint and layout."""

    request: Mapping[str, Any]
    dtype: str | None = None
    residency: Residency | Mapping[str, Any] | None = None
    plan: ParallelPlan | Mapping[str, object] | None = None
    overrides: Mapping[str, object] | None = None
    layers: int | None = None
    inputs: str | None = None
    after_load: str | None = None


def prepare(
    checkpoint: str | Path, layout: Layout | Mapping[str, int], asked: Asked
) -> tuple[Case, ResolvedPlan]:
    """Check a proof against configs and headers, and say what both sides are to compute.

    Raises:
        ArmillaryError: what cannot be, with every problem of a kind at once.
    """
    _refuse_torchrun()
    pipeline, folder = _find(checkpoint)
    job = _generation(pipeline, layout, asked) if pipeline else None
    degrees = job.layout if job else _degrees(layout)
    residency = job.residency if job else _residency(asked.residency)
    case = Case(
        folder=folder,
        pipeline=pipeline,
        request=job.request.to_json() if job else None,
        layout=degrees,
        dtype="",
        yardstick=None,
        residency=residency,
        layers=asked.layers,
        inputs=asked.inputs,
        after_load=asked.after_load,
        calls=_calls(job) if job else 1,
    )
    return _complete(case, asked)


def _refuse_torchrun() -> None:
    if joined_group() is not None:
        what = "a proof starts its own ranks, and this process is one of torchrun's or of a process group"
        raise RequestError(Problem("own-ranks", what, "start it as an ordinary process, on one machine"))


def _find(checkpoint: str | Path) -> tuple[Path | None, Path]:
    """The pipeline's folder, where there is a pipeline that can be run, and the model's own."""
    configs = Path(checkpoint).expanduser() if is_here(checkpoint) else locate_configs(str(checkpoint))
    subfolder = "transformer" if (configs / "transformer" / "config.json").is_file() else None
    folder = locate(checkpoint, subfolder)
    if subfolder is None or not _is_run(folder):
        return None, folder
    return locate(checkpoint, whole=True), folder


def _is_run(transformer: Path) -> bool:
    """Whether a transformer is of the class whose pipeline is run."""
    return class_named_in(read_object(transformer / "config.json"), transformer) == MODEL_CLASS


def _generation(pipeline: Path, layout: Layout | Mapping[str, int], asked: Asked) -> Job:
    """A short generation, with sound where the checkpoint makes some."""
    able = abilities(pipeline)
    fields = {**DEFAULTS, **asked.request}
    if "seconds" in asked.request and "num_frames" not in asked.request:
        del fields["num_frames"]
    if able.distilled:
        fields = {key: value for key, value in fields.items() if key in asked.request or key not in _FIXED}
        fields.setdefault("num_frames", 1)
    elif str(fields.get("num_frames")) != "1" and fields.get("mode") != "text-to-image" and not able.edge:
        fields.setdefault("sound", able.sound)
    if fields.get("guidance_interval", "none") != "none":
        what = "diffusers' own pipeline, which is the truth here, knows no guidance_interval"
        raise RequestError(Problem("guidance-interval", what, "leave it out"))
    return prepare_generation(
        fields, pipeline, layout, dtype=asked.dtype, residency=asked.residency, here=True
    )


def _calls(job: Job) -> int:
    """How often one process calls the model: at every step for each branch of guidance."""
    return job.request.num_inference_steps * (1 if job.request.guidance_scale == 1.0 else 2)


def _degrees(layout: Layout | Mapping[str, int]) -> Layout:
    if isinstance(layout, Layout):
        return layout
    if unknown := [axis for axis in layout if axis not in Layout.AXES]:
        fix = f"use {list_choices(Layout.AXES)}"
        raise LayoutError(Problem("unknown-key", f"{axis!r} is no axis", fix) for axis in unknown)
    return Layout(**layout)


def _residency(residency: Residency | Mapping[str, Any] | None) -> Residency:
    return residency if isinstance(residency, Residency) else Residency(**(residency or {}))


def _complete(case: Case, asked: Asked) -> tuple[Case, ResolvedPlan]:
    """The case with its dtypes, after the plan was held against the model and the memory against both."""
    index = case.index()
    stored = describe_index(index)
    dtype = asked.dtype or main_dtype(stored)
    refusals = Refusals()
    if dtype not in DTYPES:
        what = f"a proof cannot be computed in {dtype}"
        refusals.add(RequestError, [Problem("dtype", what, f"use {list_choices(DTYPES)}")])
        dtype = "float32"
    refusals.add(LayoutError, rank_problems(case.layout.world_size) if case.request is None else [])
    refusals.add(RequestError, _function_problems(case, stored.model_class))
    with refusals.collect():
        resolved = _resolved(index, dtype, case, asked)
        inputs = [path for path, style in resolved.styles.items() if isinstance(style, _SPLIT_INPUTS)]
        exact, problems = fits(resolved, case.layout, has_blocks=bool(depths(index)))
        refusals.add(LayoutError, problems)
    refusals.raise_if_any()
    yardstick = dtype if dtype != "float32" else "float64" if exact else None
    # with what was merged into it, so that the ranks need not know from where
    plan = None if asked.plan is asked.overrides is None else resolved.plan.to_json()
    return replace(case, dtype=dtype, yardstick=yardstick, plan=plan, inputs_of=tuple(inputs)), resolved


def _resolved(index: CheckpointIndex, dtype: str, case: Case, asked: Asked) -> ResolvedPlan:
    """What the ranks will hold, or why they cannot. A class that its family has not written down is built on
    meta, as `load` does it, which costs the import of diffusers."""
    described = describe_index(index, dtype=dtype)
    family = family_of(described.model_class)
    plans: dict[str, Any] = {"plan": asked.plan, "overrides": asked.overrides}
    if family is not None and family.CONTEXT:
        return resolve(described.skeleton, case.layout, **plans)
    import torch

    from armillary.parallel.load import build_on_meta, resolve_all

    kind = getattr(torch, dtype)
    return resolve_all(
        build_on_meta(index, kind),
        index,
        case.layout,
        kind,
        **plans,
        prefill=False,
        residency=case.residency,
        leave_out=(),
    )


def _function_problems(case: Case, model_class: str) -> Iterator[Problem]:
    for name, value in (("inputs", case.inputs), ("after_load", case.after_load)):
        if value is not None and not _is_importable(value):
            what = f"{name}={value!r} names no function that can be imported here"
            yield Problem("function", what, 'write "package.module:function"; PYTHONPATH says where to look')
    if case.inputs is not None and case.request is not None:
        what = f"inputs={case.inputs!r} would not be used: the pipeline makes the inputs of {model_class}"
        yield Problem("inputs", what, "leave it out, or name the transformer's own folder")
    elif case.inputs is None and case.request is None and not family_of(model_class):
        what = f"Armillary has no inputs for a forward of {model_class}"
        yield Problem("inputs", what, "give --inputs, a function that makes its keyword arguments")


def _is_importable(function: str) -> bool:
    """Whether the module of "package.module:function" can be found; it is imported on the ranks only."""
    module, colon, name = function.partition(":")
    try:
        return bool(colon and name) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
