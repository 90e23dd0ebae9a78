"""The rules of a request, each a function that yields what breaks it; `request.complete` asks them all.

`asked` is the request as it came, `filled` the same with its defaults: a rule about a value reads `filled`,
a rule about what may be said at all reads `asked`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from armillary.engine.abilities import Abilities
from armillary.engine.modes import INPUTS, defaults, runnable_modes
from armillary.errors import Problem, list_choices

if TYPE_CHECKING:
    from armillary.engine.request import CompleteRequest, GenerationRequest

MAX_FRAMES = 1201
"""Four times the longest published clip of 300: a number beyond it is a slip of the pen."""
MAX_SIDE = 4096
"""Pixels; over three times the largest published side."""
TIMESTEPS = 1000
"""Timesteps of the noise schedule that the models were trained with."""

_BOUNDS = {
    "fps": (1, 240),
    "num_inference_steps": (1, TIMESTEPS),
    "guidance_scale": (0, 100),
    "flow_shift": (0.01, 100),
}
"""Lowest and highest legal value. The upper bounds keep a slip from ending in an overflow or in no memory."""


def problems_of(asked: GenerationRequest, filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    """Everything that the checkpoint or this version cannot do as asked."""
    yield from _mode(filled, abilities)
    yield from _inputs(filled)
    yield from _size(filled, abilities)
    yield from _seconds(asked, filled, abilities)
    yield from _frames(asked, filled, abilities)
    yield from _numbers(asked, filled, abilities)
    yield from _interval(filled)
    yield from _sound(filled, abilities)
    if abilities.distilled:
        yield from _distilled(asked, abilities)


def _mode(filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    runnable = runnable_modes(abilities)
    if filled.mode not in INPUTS:
        yield Problem(
            "mode", f"mode {filled.mode} is not run by this version", f"use {list_choices(runnable)}"
        )
    elif filled.mode not in runnable:
        family = "a distilled checkpoint" if abilities.distilled else "of the Edge family"
        yield Problem(
            "mode",
            f"{abilities.name} is {family} and cannot do {filled.mode}",
            f"use {list_choices(runnable)}",
        )


def _inputs(filled: CompleteRequest) -> Iterator[Problem]:
    if filled.mode not in INPUTS:
        return
    wanted = INPUTS[filled.mode]
    for field in ("image", "video"):
        given = getattr(filled, field) is not None
        if given and field != wanted:
            fix = f"leave out {field}, or ask for {field}-to-video"
            yield Problem("mode-input", f"{filled.mode} takes no {field}", fix)
        elif field == wanted and not given:
            yield Problem("mode-input", f"{filled.mode} needs {field}", f"give the path of the {field}")


def _size(filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    grid, sides = abilities.spatial_grid, (filled.width, filled.height)
    near = [_near_multiples(side, grid) for side in sides]
    if not all(side in legal for side, legal in zip(sides, near, strict=True)):
        sizes = [f"{width}x{height}" for width, height in itertools.product(*near)]
        yield Problem(
            "size-grid",
            f"size {filled.width}x{filled.height} is off the pixel grid of {abilities.name}: "
            f"width and height are multiples of {grid} up to {MAX_SIDE}",
            f"use {list_choices(sizes)}",
        )


def _near_multiples(value: int, step: int) -> list[int]:
    """`value` alone where it is legal, else the legal values next to it."""
    highest = MAX_SIDE // step * step
    below = min(max(value // step * step, step), highest)
    above = min(max(-(-value // step) * step, step), highest)
    return [below] if below == above else [below, above]


def _seconds(asked: GenerationRequest, filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    if asked.seconds is None:
        return
    if asked.num_frames is not None:
        yield Problem(
            "frames-twice",
            f"seconds={asked.seconds:g} and num_frames={show(asked.num_frames)} both set the length",
            "give one of them",
        )
    elif filled.mode == "text-to-image":
        yield Problem("frames-image", "text-to-image makes one frame and takes no seconds", "leave it out")
    elif not (math.isfinite(asked.seconds) and asked.seconds > 0):
        yield Problem(
            "seconds-range",
            f"seconds must be a number above 0, not {asked.seconds:g}",
            "use a length such as 5",
        )
    elif asked.seconds * filled.fps > longest(abilities.temporal):
        yield Problem(
            "seconds-range",
            f"seconds={asked.seconds:g} at {filled.fps:g} fps is over {longest(abilities.temporal)} frames",
            "ask for a shorter video",
        )


def _frames(asked: GenerationRequest, filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    frames, step = asked.num_frames, abilities.temporal
    if frames is None:  # the default and `seconds` are rounded up to the grid
        return
    if filled.mode == "text-to-image":
        if frames != 1:
            fix = "leave num_frames out, or ask for a video"
            yield Problem("frames-image", f"text-to-image makes 1 frame, not {show(frames)}", fix)
        return
    near = _near_frames(frames, step)
    if near != [frames]:
        # One frame is legal where it decides the mode.
        free = frames < shortest(step) and (asked.mode, asked.image, asked.video) == (None, None, None)
        yield Problem(
            "frames-grid",
            f"num_frames={show(frames)} is off the frame grid of {filled.mode}: "
            f"a video has {step}k+1 frames, from {shortest(step)} to {longest(step)}",
            f"use {list_choices([1, *near] if free else near)}",
        )


def shortest(step: int) -> int:
    """Frames of the shortest video: two latent frames, which is also what video-to-video conditions on."""
    return step + 1


def longest(step: int) -> int:
    """Frames of the longest video."""
    return (MAX_FRAMES - 1) // step * step + 1


def _near_frames(frames: int, step: int) -> list[int]:
    """`frames` alone where a video can have as many, else the legal counts next to it."""
    below = (frames - 1) // step * step + 1
    above = -(-(frames - 1) // step) * step + 1
    legal = {min(max(count, shortest(step)), longest(step)) for count in (below, above)}
    return sorted(legal)


def _numbers(asked: GenerationRequest, filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    published = defaults(filled.mode, abilities)
    for field, (lowest, highest) in _BOUNDS.items():
        value, usual = getattr(asked, field), getattr(published, field)
        # Written so that NaN, which compares false, is refused too. Without a usual value the field is fixed.
        if value is not None and usual is not None and not lowest <= value <= highest:
            yield Problem(
                f"{field.replace('_', '-')}-range",
                f"{field} must be between {lowest} and {highest}, not {show(value)}",
                f"the published value is {usual:g}",
            )
    if not 0 <= filled.seed < 2**63:
        yield Problem(
            "seed-range",
            f"seed must be at least 0 and below 2**63, not {show(filled.seed)}",
            "use one such as 42, or leave it out",
        )


def _interval(filled: CompleteRequest) -> Iterator[Problem]:
    if filled.guidance_interval is None:
        return
    low, high = filled.guidance_interval
    if not 0 <= low <= high <= TIMESTEPS:
        yield Problem(
            "guidance-interval",
            f"guidance_interval must be LO,HI with 0 <= LO <= HI <= {TIMESTEPS}, not {low:g},{high:g}",
            f"use a pair such as 400,{TIMESTEPS}, or none",
        )


def _sound(filled: CompleteRequest, abilities: Abilities) -> Iterator[Problem]:
    if not filled.sound:
        return
    if filled.mode == "text-to-image":
        yield Problem(
            "sound-mode", "sound goes with a video, and text-to-image makes none", "leave sound out"
        )
    if abilities.edge or abilities.distilled or not abilities.sound:
        yield Problem("sound-checkpoint", f"{abilities.name} generates no sound", "leave sound out")


def _distilled(asked: GenerationRequest, abilities: Abilities) -> Iterator[Problem]:
    """Guidance and schedule are baked into the weights of a distilled checkpoint."""
    steps = abilities.distilled_steps
    for field, fixed in (("guidance_scale", 1), ("num_inference_steps", steps)):
        value = getattr(asked, field)
        if value is not None and value != fixed:
            message = f"{abilities.name} is distilled: its {field} is {fixed}, not {show(value)}"
            yield Problem("distilled", message, f"leave {field} out")
    for field in ("negative_prompt", "guidance_interval", "flow_shift"):
        if getattr(asked, field) not in (None, "", "none"):
            yield Problem("distilled", f"{abilities.name} is distilled and takes no {field}", "leave it out")


def show(value: object) -> str:
    """`value` as a message names it: short enough for one line."""
    try:
        text = f"{value:g}" if isinstance(value, float) else repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."
