"""Flags that several verbs share, as tables, and what is made of their text.

Values stay the text that was typed: the request and the layout judge them, as they judge Python's and HTTP's,
so that every wrong value is named at once and in the same words.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.errors import ArmillaryError, Problem, RequestError


@dataclass(frozen=True)
class Flag:
    """`--its-name METAVAR`, or a switch where there is no metavar."""

    help: str
    metavar: str | None = "N"

    def parameter(self, name: str, panel: str) -> inspect.Parameter:
        """The keyword parameter that typer makes the flag from; None when the flag is not given."""
        kind: Any = bool if self.metavar is None else str | None
        option = typer.Option(
            f"--{name.replace('_', '-')}", help=self.help, metavar=self.metavar or " ", rich_help_panel=panel
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if self.metavar is None else None,
            annotation=Annotated[kind, option],
        )


def time_limit(text: str | float) -> float:
    """What typer calls to read a time limit, or to take its default."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a number of seconds above 0, such as 30")
    return seconds


Dtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="Of weights and computation; else as the transformer is stored."),
]
PlanFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="JSON or YAML, merged into the registered plan.")
]
StepTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", parser=time_limit, help="A rank that rests longer has stalled.")
]
InitTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", parser=time_limit, help="The same until every rank is ready.")
]

REQUEST = {
    "prompt": Flag("What to generate.", "TEXT"),
    "negative_prompt": Flag("What guidance leads away from.", "TEXT"),
    "mode": Flag("Such as text-to-image; left out, it follows from the other flags.", "MODE"),
    "size": Flag("Size in pixels, such as 1280x720.", "WxH"),
    "num_frames": Flag("Frames of the video, 4k+1."),
    "seconds": Flag("Length of the video in place of frames, rounded up to 4k+1 of them.", "X"),
    "fps": Flag("Frames per second.", "X"),
    "num_inference_steps": Flag("Denoising steps."),
    "guidance_scale": Flag("Scale of classifier-free guidance; 1 runs without it.", "X"),
    "guidance_interval": Flag("Timesteps, 0 to 1000, between which guidance acts.", "LO,HI|none"),
    "flow_shift": Flag("Shift of the noise schedule towards noisy timesteps.", "X"),
    "seed": Flag("Of the noise; left out, one is drawn and printed."),
    "image": Flag("First frame, for image-to-video.", "FILE"),
    "video": Flag("Clip to continue, for video-to-video.", "FILE"),
    "sound": Flag("Generate sound with the video.", None),
    "plain_prompt": Flag("No sentences on size and length added to the prompts.", None),
}
"""The fields of a request; those left out take the published defaults of the mode."""

LAYOUT = {
    "tensor_parallel_size": Flag("Ranks that split the width of every layer."),
    "ulysses_degree": Flag("Ranks that exchange heads for parts of the sequence."),
    "ring_degree": Flag("Ranks that pass keys and values round."),
    "allgather_degree": Flag("Ranks that gather keys and values; any number."),
    "cfg_parallel_size": Flag("2 computes the two branches of guidance side by side."),
}
"""The degrees, named as deployers know them."""

RESIDENCY = {
    "enable_layerwise_offload": Flag("Blocks live elsewhere and stream through the device.", None),
    "offload_to": Flag("Where: host memory or the checkpoint on disk.", "host|disk"),
    "offload_prefetch": Flag("Blocks that are read ahead."),
    "offload_resident_layers": Flag("The first blocks, which stay on the device."),
    "evict": Flag("What only the prompt needs leaves the device after it, as on a crowded one.", None),
    "no_evict": Flag("It stays, also on a crowded device.", None),
}
"""Where the weights live; left out, on the device."""

AXES = {
    "tensor_parallel_size": "tp",
    "ulysses_degree": "ulysses",
    "ring_degree": "ring",
    "allgather_degree": "gather",
    "cfg_parallel_size": "cfg",
}


def takes(**panels: Mapping[str, Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb, in place of its `**flags`, the flags of these tables, each under its panel in the help."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        written = inspect.signature(verb, eval_str=True)
        own = [p for p in written.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        shared = [
            flag.parameter(name, panel) for panel, table in panels.items() for name, flag in table.items()
        ]
        verb.__signature__ = written.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        return verb

    return decorate


def request_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the request that were given."""
    return {name: flags[name] for name in REQUEST if flags[name] is not None}


def degrees_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Axis to degree, where given; text that is no number stays as it is, for `Layout` to name."""
    return {axis: _whole(flags[name]) for name, axis in AXES.items() if flags[name] is not None}


def residency_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Residency` that were given."""
    place = flags["offload_to"] or "auto"
    if flags["offload_to"] and not (flags["enable_layerwise_offload"] or flags["evict"]):
        why = "--offload-to says where, and nothing is offloaded"
        raise RequestError(Problem("offload-to", why, "give --enable-layerwise-offload or --evict too"))
    wanted = {
        "offload": place if flags["enable_layerwise_offload"] else None,
        "evict": place if flags["evict"] else None,
        "prefetch": flags["offload_prefetch"] and _whole(flags["offload_prefetch"]),
        "resident_layers": flags["offload_resident_layers"] and _whole(flags["offload_resident_layers"]),
    }
    if flags["evict"] and flags["no_evict"]:
        raise RequestError(
            Problem("evict", "--evict and --no-evict contradict each other", "give one of them")
        )
    given = {name: value for name, value in wanted.items() if value is not None}
    # said to be off, which is not the same as left open
    return given | {"evict": None} if flags["no_evict"] else given


@contextmanager
def refusals_as_json(wanted: bool, document: Mapping[str, Any]) -> Iterator[None]:
    """With --json stdout holds a document also when there is no answer: `document`, which has the form of one
    with nothing in it, and the problems. stderr says them in lines."""
    try:
        yield
    except ArmillaryError as error:
        if wanted:
            problems = [{"rule": p.rule, "message": p.message, "fix": p.fix} for p in error.problems]
            typer.echo(json.dumps({**document, "problems": problems}, indent=2))
        raise


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
