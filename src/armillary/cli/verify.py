"""`armillary verify`: does a layout compute what one process computes?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from armillary.cli.options import LAYOUT, REQUEST, RESIDENCY, degrees_of, residency_of, takes, time_limit

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
        str, typer.Argument(metavar="MODEL", help="A folder or a hub id, of a pipeline or of a model.")
    ],
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="In which the ranks compute; else as the model is stored."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Cut the model to N blocks; the others are not read.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Makes the inputs of a model that has no pipeline."),
    ] = None,
    after_load: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Called on every rank with the loaded model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    step_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", callback=time_limit, help="A rank that rests longer has stalled."),
    ] = 600,
    init_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", callback=time_limit, help="The same until every rank is ready."),
    ] = 1800,
    **flags: Any,
) -> None:
    """Prove that a layout computes what one process computes.

    One process runs diffusers' own model, whole; then ranks of this machine run the layout on the same
    inputs: a short generation for a pipeline, one forward for any other model. Exit code 0: within what
    rounding explains, 1: not, and the first layer that differs is named.
    """
    from armillary.proof.verify import verify as run

    report = run(
        checkpoint,
        degrees_of(flags),
        request={name: flags[name] for name in _FIELDS if flags[name] is not None},
        dtype=dtype,
        residency=residency_of(flags),
        layers=layers,
        inputs=inputs,
        after_load=after_load,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
    )
    typer.echo(json.dumps(report.to_json(), indent=2) if as_json else "\n".join(report.lines()))
    if not report.ok:
        raise typer.Exit(1)
