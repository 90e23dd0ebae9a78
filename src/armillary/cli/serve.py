"""`armillary serve`: the HTTP server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.cli.foreign import FOREIGN, TAKEN, foreign_problems
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
from armillary.errors import Problem

_PIPELINES = ("Cosmos3OmniDiffusersPipeline", "Cosmos3OmniPipeline", "Cosmos3OmniModularPipeline")


@takes(**{"Layout": LAYOUT, "Residency": RESIDENCY, TAKEN: FOREIGN})
def serve(
    checkpoint: Annotated[
        str, typer.Argument(metavar="MODEL", show_default=False, help="Checkpoint: a folder or a hub id.")
    ] = "",  # left out, it is refused together with what else is wrong, such as vLLM's --model
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
        str | None, typer.Option(metavar="DIR", help="Jobs and results; else ~/.local/share/armillary.")
    ] = None,
    max_queue: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs that may wait.")] = 100,
    max_attempts: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often a job may fail by itself.")
    ] = 2,
    max_upload_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Of one file.")] = 256 << 20,
    max_generated_image_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Width times height that a request may ask for.")
    ] = None,
    result_max_age: Annotated[
        float, typer.Option(metavar="SECONDS", parser=time_limit, help="After which a result is gone.")
    ] = 86400.0,
    result_max_bytes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of all results; the oldest go first.")
    ] = 50 << 30,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of requests that give none; else one is drawn.")
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
        str | None, typer.Option(metavar="NAME", help=f"{_PIPELINES[0]}, or left out.")
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option(metavar="N", help="Must be the product of the degrees, where given.")
    ] = None,
    **flags: Any,
) -> None:
    """Serve a model over HTTP, as OpenAI's and vLLM-Omni's API.

    A command for `vllm serve` works with the word replaced, or names the flag that is not honoured.
    """
    from armillary.errors import Refusals, RequestError
    from armillary.plan.file import read_plan
    from armillary.serve.launcher import Wanted, serve as run

    names = served_model_name or []
    data = _home() if data_dir is None else Path(data_dir).expanduser().absolute()
    refusals = Refusals()
    refusals.add(RequestError, foreign_problems(flags))
    refusals.add(RequestError, _key_problems(api_key))
    refusals.add(RequestError, _empty_values({"--served-model-name": names, "--data-dir": [data_dir]}))
    refusals.add(RequestError, _folder_problems(data))
    if model_class_name is not None and model_class_name not in _PIPELINES:
        why = f"--model-class-name {model_class_name} is not served"
        refusals.add(RequestError, [Problem("pipeline", why, f"the pipeline is {_PIPELINES[0]}")])
    degrees = degrees_of(flags)
    refusals.add(RequestError, _count_problems(num_gpus, degrees))
    overrides, residency = None, {}
    with refusals.collect():
        overrides = None if plan is None else read_plan(plan)
    with refusals.collect():
        residency = residency_of(flags)
    wanted = Wanted(
        host=host,
        port=port,
        api_key=api_key or None,
        no_auth=no_auth,
        names=tuple(names),
        data=data,
        seed=seed,
        step_timeout=step_timeout,
        init_timeout=init_timeout,
        max_attempts=max_attempts,
        max_queue=max_queue,
        max_upload_bytes=max_upload_bytes,
        max_pixels=max_generated_image_size,
        result_max_age=result_max_age,
        result_max_bytes=result_max_bytes,
        allowed_local_media_path=allowed_local_media_path,
    )
    run(
        checkpoint,
        degrees,
        wanted,
        dtype=dtype,
        residency=residency,
        overrides=overrides,
        problems=refusals.problems,
    )


def _key_problems(api_key: str | None) -> Iterator[Problem]:
    if api_key is not None and not api_key.strip():
        yield Problem("api-key", "--api-key is empty", "give a key, or leave it out")
    if "VLLM_API_KEY" in os.environ and api_key is None:
        yield Problem(
            "api-key", "VLLM_API_KEY is set and not read here", "use ARMILLARY_API_KEY or --api-key"
        )


def _empty_values(given: Mapping[str, Sequence[str | None]]) -> Iterator[Problem]:
    for flag, values in given.items():
        if any(value is not None and not value.strip() for value in values):
            yield Problem("empty", f"{flag} is empty", "give a value, or leave it out")


def _folder_problems(data: Path) -> Iterator[Problem]:
    """Why jobs cannot be kept in a folder that may not be there yet."""
    if os.environ.get("RANK", "0") != "0":
        return  # under torchrun the first rank keeps them
    there = next(folder for folder in (data, *data.parents) if folder.exists())
    if not there.is_dir():
        yield Problem("data-dir", f"--data-dir {data}: {there} is a file", "give a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Problem("data-dir", f"--data-dir {data}: {there} cannot be written to", "give another folder")


def _count_problems(num_gpus: int | None, degrees: Mapping[str, Any]) -> Iterator[Problem]:
    """Whether so many devices are what the degrees multiply to, where these are degrees at all."""
    from armillary.errors import LayoutError
    from armillary.layout import Layout

    try:
        ranks = Layout(**degrees).world_size
    except LayoutError:
        return  # told where the layout is judged
    if num_gpus is not None and num_gpus != ranks:
        why = f"--num-gpus {num_gpus}, but the layout has {ranks} ranks"
        yield Problem("num-gpus", why, "leave it out, or change a degree")


def _home() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "armillary"
