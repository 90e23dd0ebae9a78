"""`armillary advise`: will it fit, which layouts, how fast, and the commands to run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from armillary.cli.options import (
    LAYOUT,
    REQUEST,
    RESIDENCY,
    Dtype,
    degrees_of,
    refusals_as_json,
    request_of,
    residency_of,
    takes,
)
from armillary.errors import Problem, Refusals, RequestError

_NUMBER = "X"


@takes(Request=REQUEST, Layout=LAYOUT, Residency=RESIDENCY)
def advise(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub id, or a known name.")],
    gpus: Annotated[
        str | None, typer.Option(metavar="N|LO-HI", help="Devices in all, or a range of them.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Kind of card, such as h100-80gb.")] = None,
    memory_gb: Annotated[float | None, typer.Option(metavar=_NUMBER, help="Of a card, GiB.")] = None,
    tflops: Annotated[float | None, typer.Option(metavar=_NUMBER, help="Dense BF16 rate of a card.")] = None,
    bandwidth: Annotated[float | None, typer.Option(metavar=_NUMBER, help="Of its memory, GB/s.")] = None,
    link: Annotated[
        float | None, typer.Option(metavar=_NUMBER, help="Between cards, GB/s in one direction.")
    ] = None,
    watts: Annotated[float | None, typer.Option(metavar=_NUMBER, help="Board power limit.")] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines that the devices are spread over.")] = 1,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="Whose time: armillary, vllm-omni, pytorch or diffusers.")
    ] = "armillary",
    dtype: Dtype = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    **flags: Any,
) -> None:
    """Say whether and how a generation fits, how long it takes, and what to type.

    Nothing is downloaded and no weight is read. Exit code 3: it does not fit.
    """
    from armillary.advisor.ask import ask
    from armillary.advisor.hardware import described_gpu, find_gpu
    from armillary.advisor.report import exit_code

    refusals = Refusals()
    card = None
    counts: tuple[int, ...] = ()
    with refusals.collect():
        card = find_gpu(gpu) if gpu is not None else None
        numbers = {"memory_gb": memory_gb, "tflops": tflops, "bandwidth": bandwidth, "link": link}
        if card is None or any(value is not None for value in (*numbers.values(), watts)):
            card = described_gpu(card, **numbers, watts=watts)
    with refusals.collect():
        counts = counts_of(gpus)
    with refusals.collect():
        answer = ask(
            model,
            card or find_gpu("h100-80gb"),
            counts=counts,
            nodes=nodes,
            engine=engine,
            request=request_of(flags),
            layout=degrees_of(flags),
            residency=residency_of(flags),
            dtype=dtype,
        )
    nothing: dict[str, list[object]] = {"layouts": [], "refused": [], "advice": []}
    with refusals_as_json(json, {"model": model, "engine": engine, **nothing}):
        refusals.raise_if_any()
    _print(answer, json)
    if code := exit_code(answer):
        raise typer.Exit(code)


def counts_of(text: str | None) -> tuple[int, ...]:
    """ "4" or "2-8" as numbers of devices; raises `RequestError` for anything else."""
    if text is None:
        return ()
    low, _, high = text.strip().partition("-")
    if low.isdecimal() and high.isdecimal() and int(low) <= int(high) <= int(low) + 63:
        return tuple(range(int(low), int(high) + 1))
    try:
        return (int(text),)
    except ValueError:
        why = f"--gpus {text} is neither a number of devices nor a range such as 2-8"
        raise RequestError(Problem("gpus", why, "use 1 or more, at most 64 counts at once")) from None


def _print(answer: Any, as_document: bool) -> None:
    import json
    import sys

    from armillary.advisor.report import as_json, show

    if as_document:
        print(json.dumps(as_json(answer), indent=2))
        return
    from rich.console import Console

    # wide where it goes into a file: a cut line says less
    width = None if sys.stdout.isatty() else 200
    show(answer, Console(width=width, highlight=False))
