"""`armillary generate`: one generation, on ranks of this machine or joined to torchrun."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    request_of,
    residency_of,
    takes,
)

if TYPE_CHECKING:
    from armillary.engine.generate import GenerationResult


@takes(Request=REQUEST, Layout=LAYOUT, Residency=RESIDENCY)
def generate(
    checkpoint: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a hub id, or toy-world, which ships.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help=".mp4, .png, .jpg, or .npz without loss."),
    ],
    dtype: Dtype = None,
    plan: PlanFile = None,
    step_timeout: StepTimeout = 600,
    init_timeout: InitTimeout = 1800,
    **flags: Any,
) -> None:
    """Generate a picture or a video, on one device or on several.

    Flags of the request that are left out take the published defaults of the mode.
    """
    from armillary.engine.generate import generate as run
    from armillary.plan.file import read_plan

    started = time.monotonic()
    result = run(
        request_of(flags),
        checkpoint,
        degrees_of(flags),
        dtype=dtype,
        residency=residency_of(flags),
        overrides=None if plan is None else read_plan(plan),
        output=output,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
    )
    # under torchrun every rank comes here, and the first one speaks
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"{output}  {_summary(result)}  {time.monotonic() - started:.1f} s in all")


def _summary(result: GenerationResult) -> str:
    request = result.request
    weights = " + ".join(f"{held / 2**20:,.1f}" for held in result.weight_bytes)
    return (
        f"{request.mode} {request.width}x{request.height}x{request.num_frames}  seed {result.seed}  "
        f"{result.dtype}  weights {weights} MiB  {result.seconds_per_step:.2f} s/step"
    )
