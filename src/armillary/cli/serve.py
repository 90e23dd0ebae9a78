"""`armillary serve`: the HTTP server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.cli.foreign import FOREIGN
from armillary.cli.options import (
    LAYOUT,
    RESIDENCY,
    Dtype,
    InitTimeout,
    PlanFile,
    StepTimeout,
    degrees_of,
    residency_of,
    takes,
    time_limit,
)

_PIPELINES = ("Cosmos3OmniDiffusersPipeline", "Cosmos3OmniPipeline", "Cosmos3OmniModularPipeline")


def _pipeline(name: str | None) -> str | None:
    if name is not None and name not in _PIPELINES:
        raise typer.BadParameter(f"{name} is not served; the pipeline is {_PIPELINES[0]}")
    return name


@takes(Layout=LAYOUT, Residency=RESIDENCY, Foreign=FOREIGN)
def serve(
    checkpoint: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint: a folder or a hub id.")],
    host: Annotated[
        str, typer.Option(envvar="ARMILLARY_HOST", help="Address to listen on; beyond loopback with a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ARMILLARY_API_KEY", metavar="KEY", help="That clients must send."),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve other machines without a key.")] = False,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="By which clients ask for the model; may be repeated."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Jobs and results; else ~/.local/share/armillary.")
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs that may wait.")] = 100,
    max_attempts: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often a job may fail by itself.")
    ] = 2,
    max_upload_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Of one file.")] = 256 << 20,
    result_max_age: Annotated[
        float, typer.Option(metavar="SECONDS", callback=time_limit, help="After which a result is gone.")
    ] = 86400.0,
    result_max_bytes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of all results; the oldest go first.")
    ] = 50 << 30,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of requests that give none; else one is drawn.")
    ] = None,
    dtype: Dtype = None,
    plan: PlanFile = None,
    step_timeout: StepTimeout = 600,
    init_timeout: InitTimeout = 1800,
    allowed_local_media_path: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Taken for vLLM's sake: this version serves uploads only."),
    ] = None,
    omni: Annotated[bool, typer.Option("--omni", help="Taken for vLLM's sake: it is so anyway.")] = False,
    model_class_name: Annotated[
        str | None, typer.Option(metavar="NAME", callback=_pipeline, help=f"{_PIPELINES[0]}, or left out.")
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option(metavar="N", help="Must be the product of the degrees, where given.")
    ] = None,
    **flags: Any,
) -> None:
    """Serve a model over HTTP, as OpenAI's and vLLM-Omni's API.

    A command for `vllm serve` works with the word replaced, or names the flag that is not honoured.
    """
    from armillary.layout import Layout
    from armillary.plan.file import read_plan
    from armillary.serve.launcher import Wanted, serve as run

    if "VLLM_API_KEY" in os.environ and api_key is None:
        raise typer.BadParameter("VLLM_API_KEY is set and not read here; use ARMILLARY_API_KEY or --api-key")
    degrees = degrees_of(flags)
    if num_gpus is not None and num_gpus != Layout(**degrees).world_size:
        needs = f"the layout has {Layout(**degrees).world_size} ranks"
        raise typer.BadParameter(f"--num-gpus {num_gpus}, but {needs}; leave it out, or change a degree")
    wanted = Wanted(
        host=host,
        port=port,
        api_key=api_key or None,
        no_auth=no_auth,
        names=tuple(served_model_name or ()),
        data=(data_dir or _home()).expanduser().absolute(),
        seed=seed,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
        max_attempts=max_attempts,
        max_queue=max_queue,
        max_upload_bytes=max_upload_bytes,
        result_max_age=result_max_age,
        result_max_bytes=result_max_bytes,
        allowed_local_media_path=allowed_local_media_path,
    )
    overrides = None if plan is None else read_plan(plan)
    run(checkpoint, degrees, wanted, dtype=dtype, residency=residency_of(flags), overrides=overrides)


def _home() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "armillary"
