"""Flags that several verbs share, as tables, and what is made of their text.

Values stay the text that was typed: `GenerationRequest` and `Layout` judge them, as they judge Python's and
HTTP's, so that every wrong value is named at once and in the same words.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from armillary.engine.request import GenerationRequest
from armillary.errors import ArmillaryError, Problem
from armillary.layout import Layout


@dataclass(frozen=True)
class Flag:
    """`--its-name METAVAR`, or a switch where there is no metavar."""

    help: str
    metavar: str | None = "N"

    def parameter(self, name: str, panel: str) -> inspect.Parameter:
        """The keyword parameter that typer makes the flag from; None when the flag is not given."""
        kind: Any = bool if self.metavar is None else str | None
        option = typer.Option(
            f"--{name.replace('_', '-')}", help=self.help, metavar=self.metavar, rich_help_panel=panel
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if self.metavar is None else None,
            annotation=Annotated[kind, option],
        )


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


def request_of(flags: Mapping[str, Any]) -> GenerationRequest:
    """The request among a verb's flags. Raises `RequestError`."""
    return GenerationRequest.parse({name: flags[name] for name in REQUEST if flags[name] is not None})


def layout_of(flags: Mapping[str, Any]) -> Layout:
    """The layout among a verb's flags. Raises `LayoutError`."""
    given = {axis: flags[name] for name, axis in AXES.items() if flags[name] is not None}
    return Layout(**{axis: _whole(text) for axis, text in given.items()})


def seconds_of(flag: str, text: str) -> float:
    """A time limit in seconds. Raises `ArmillaryError` naming the flag."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArmillaryError(Problem("time-limit", f"{flag} is {text!r}", "use a number of seconds above 0"))
    return seconds


def all_of(*parts: Callable[[], Any]) -> list[Any]:
    """What each part returns, or one error with the problems of every part that raised one."""
    values: list[Any] = []
    problems: list[Problem] = []
    for part in parts:
        try:
            values.append(part())
        except ArmillaryError as error:
            problems.extend(error.problems)
    if problems:
        raise ArmillaryError(problems)
    return values


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text  # Layout says that this is no number of ranks
