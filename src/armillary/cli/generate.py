"""`armillary generate`: one generation, in this process, on ranks of this machine, or joined to torchrun."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.cli.options import LAYOUT, REQUEST, all_of, layout_of, request_of, seconds_of, takes


@takes(Request=REQUEST, Layout=LAYOUT)
def generate(
    checkpoint: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint: a folder or a hub id.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help=".mp4, .png, .jpg, or .npz without loss."),
    ],
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Of the weights; else that of the transformer's.")
    ] = None,
    step_timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help="A rank that takes longer for a step has stalled.")
    ] = "600",
    init_timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help="A rank that takes longer to be ready has stalled.")
    ] = "1800",
    **flags: Any,
) -> None:
    """Generate a picture or a video, on one device or on several.

    Flags of the request that are left out take the published defaults of the mode.
    """
    request, layout, step_limit, init_limit = all_of(
        partial(request_of, flags),
        partial(layout_of, flags),
        partial(seconds_of, "--step-timeout", step_timeout),
        partial(seconds_of, "--init-timeout", init_timeout),
    )

    from armillary.engine.generate import generate as run

    started = time.monotonic()
    result = run(
        request,
        checkpoint,
        layout=layout,
        dtype=dtype,
        output=output,
        step_timeout=step_limit,
        init_timeout=init_limit,
    )
    typer.echo(f"{output}  seed {result.seed}  {time.monotonic() - started:.1f} s")
