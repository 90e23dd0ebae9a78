"""`armillary verify`: does a layout compute what one process computes?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from armillary.cli.options import (
    LAYOUT,
    REQUEST,
    RESIDENCY,
    Dtype,
    InitTimeout,
    PlanFile,
    StepTimeout,
    degrees_of,
    residency_of,
    takes,
)

_FIELDS = (
    "prompt",
    "negative_prompt",
    "mode",
    "size",
    "num_frames",
    "num_inference_steps",
    "guidance_scale",
    "flow_shift",
    "seed",
    "image",
    "video",
)
GENERATION = {name: REQUEST[name] for name in _FIELDS}


@takes(Generation=GENERATION, Layout=LAYOUT, Residency=RESIDENCY)
def verify(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A folder or a hub id, of a pipeline or of a model; with --all a class.",
            show_default=False,
        ),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--all", help="Every shipped plan, on small models of its class.")
    ] = False,
    dtype: Dtype = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Cut the model to N blocks; the others are not read.")
    ] = None,
    plan: PlanFile = None,
    inputs: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Makes the inputs of a model that has no pipeline."),
    ] = None,
    after_load: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Called on every rank with the loaded model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    step_timeout: StepTimeout = 600,
    init_timeout: InitTimeout = 1800,
    **flags: Any,
) -> None:
    """Prove that a layout computes what one process computes.

    One process runs diffusers' own model, whole; then ranks of this machine run the layout on the same
    inputs: a short generation for a pipeline, one forward for any other model. Exit code 0: within what
    rounding explains, 1: not, and the first layer that differs is named.
    """
    limits: dict[str, Any] = {"step_timeout": step_timeout, "init_timeout": init_timeout}
    if shipped:
        _verify_all(checkpoint, flags, as_json, dtype, limits)
        return
    if checkpoint is None:
        raise typer.BadParameter("name a MODEL, or prove the shipped plans with --all")
    from armillary.plan.file import read_plan
    from armillary.proof.verify import verify as run

    report = run(
        checkpoint,
        degrees_of(flags),
        request={name: flags[name] for name in _FIELDS if flags[name] is not None},
        dtype=dtype,
        residency=residency_of(flags),
        overrides=None if plan is None else read_plan(plan),
        layers=layers,
        inputs=inputs,
        after_load=after_load,
        **limits,
    )
    _tell(report.to_json(), report.lines(), as_json, report.ok)


def _verify_all(
    model_class: str | None,
    flags: Mapping[str, Any],
    as_json: bool,
    dtype: str | None,
    limits: Mapping[str, Any],
) -> None:
    from armillary.layout import Layout
    from armillary.proof.shipped import verify_all

    degrees = degrees_of(flags)
    rows, skipped = verify_all(
        [Layout(**degrees)] if degrees else None,
        model_class=model_class,
        dtype=dtype or "float32",
        **limits,
    )
    told = {"results": [row.to_json() for row in rows], "skipped": [one.to_json() for one in skipped]}
    lines = [*(row.line() for row in rows), *(one.line() for one in skipped)]
    _tell(told, lines, as_json, all(row.report.ok for row in rows))


def _tell(told: Mapping[str, Any], lines: Iterable[str], as_json: bool, ok: bool) -> None:
    typer.echo(json.dumps(told, indent=2) if as_json else "\n".join(lines))
    if not ok:
        raise typer.Exit(1)
