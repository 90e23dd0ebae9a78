"""One request type and one check, behind the command line, Python and HTTP.

`GenerationRequest` is what was asked: every field but the prompt may be left out. Making one checks only
the form of the fields. `complete` holds it against a checkpoint's `Abilities`, fills in the published
defaults, and gives a `CompleteRequest`, in which nothing is left open. Both raise one `RequestError` with
every problem they find.
"""

from __future__ import annotations

import difflib
import json
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from armillary.engine.abilities import Abilities as Abilities, abilities as abilities
from armillary.engine.modes import INPUTS, Defaults, Mode, defaults
from armillary.engine.rules import problems_of, shortest, show
from armillary.errors import Problem, RequestError, list_choices

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
"""Of an output file that holds one picture."""

_T = TypeVar("_T")


def _numeral(value: object) -> object:
    # pydantic takes True for 1 and "1_000" for 1000, which no one means who asks for them
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError("not how numbers are written")
    return value


def _no_blank(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise ValueError("blank")
    return value


def _pair(value: object) -> object:
    """ "400,1000", as the command line and form fields write the interval."""
    return value.split(",") if isinstance(value, str) and value.count(",") == 1 else value


def _encodable(value: str) -> str:
    value.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair: no tokenizer takes it
    if "\0" in value:
        raise ValueError("a null character")
    return value


_Whole = Annotated[int, BeforeValidator(_numeral)]
_Real = Annotated[float, BeforeValidator(_numeral)]
_Text = Annotated[str, Field(max_length=32_000), AfterValidator(_encodable)]
_File = Annotated[Path, BeforeValidator(_no_blank)]


class GenerationRequest(BaseModel):
    """What is asked for, from wherever it comes. A field that is left out (None) is chosen by `complete`.

    Raises RequestError, never pydantic's ValidationError, when it is made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Annotated[_Text, BeforeValidator(_no_blank)]
    """What to generate."""
    negative_prompt: _Text | None = None
    """What guidance leads away from."""
    mode: Mode | None = None
    """Left out: `video` means video-to-video, `image` image-to-video, one frame or a picture as output
    text-to-image, anything else text-to-video."""
    size: Annotated[str, Field(pattern=r"^[0-9]{1,6}x[0-9]{1,6}$")] | None = None
    """WIDTHxHEIGHT in pixels: "1280x720"."""
    num_frames: _Whole | None = None
    """Frames in the video: 4k + 1."""
    seconds: _Real | None = None
    """Length of the video, in place of `num_frames`; rounded up to 4k + 1 frames."""
    fps: _Real | None = None
    """Frames per second."""
    num_inference_steps: _Whole | None = None
    """Denoising steps."""
    guidance_scale: _Real | None = None
    """Scale of classifier-free guidance; 1 runs without it."""
    guidance_interval: Annotated[tuple[_Real, _Real] | Literal["none"] | None, BeforeValidator(_pair)] = None
    """First and last timestep, of 0 to 1000, between which guidance acts, or "none" for all of them."""
    flow_shift: _Real | None = None
    """Shift of the noise schedule towards noisy timesteps."""
    seed: _Whole | None = None
    """Of the noise; left out, one is drawn."""
    image: _File | None = None
    """Path of the first frame, for image-to-video."""
    video: _File | None = None
    """Path of the clip to continue, for video-to-video."""
    sound: bool = False
    """Generate sound with the video."""
    plain_prompt: bool = False
    """The prompts as they are, without the sentences on size and length that the pipeline adds."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Make a request of `fields`: a JSON object, a form, or the flags of a command line."""
        return cls.model_validate(dict(fields))

    @model_validator(mode="wrap")
    @classmethod
    def _raise_ours(cls, fields: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            request = build(fields)
        except ValidationError as error:
            raise RequestError(_form_problems(error)) from None
        return request


_FORMS = {
    "prompt": "text of 1 to 32000 characters",
    "negative_prompt": "text of at most 32000 characters",
    "size": "WIDTHxHEIGHT in pixels, such as 1280x720",
    "num_frames": "a whole number",
    "seconds": "a number of seconds",
    "fps": "a number of frames per second",
    "num_inference_steps": "a whole number",
    "guidance_scale": "a number",
    "guidance_interval": "two timesteps such as 400,1000, or none",
    "flow_shift": "a number",
    "seed": "a whole number from 0 to 2**63 - 1",
    "image": "the path of an image file",
    "video": "the path of a video file",
    "sound": "true or false",
    "plain_prompt": "true or false",
}
"""What each field looks like; completes "`field` must be ..."."""


def _form_problems(error: ValidationError) -> Iterator[Problem]:
    """One problem a field: a union that fails reports once for each of its members."""
    first = {detail["loc"][:1]: detail for detail in reversed(error.errors(include_url=False))}
    for loc, detail in reversed(first.items()):
        field = str(loc[0]) if loc else "the request"
        if detail["type"] == "missing" and len(detail["loc"]) == 1:
            yield Problem("field-missing", f"{field} is missing", f"give {_FORMS[field]}")
        elif detail["type"] == "extra_forbidden":
            yield Problem("field-unknown", f"unknown field {show(field)}", _nearest_field(field))
        elif field == "mode":
            yield Problem("mode", f"unknown mode {show(detail['input'])}", f"use {list_choices([*INPUTS])}")
        else:
            form = _FORMS.get(field, "an object with the fields of a generation")
            yield Problem("field-form", f"{field} must be {form}, not {show(detail['input'])}")


def _nearest_field(field: str) -> str:
    known = [*GenerationRequest.model_fields]
    near = difflib.get_close_matches(field.replace("-", "_"), known, n=1)
    return f"did you mean {near[0]}?" if near else f"the fields are {', '.join(known)}"


@dataclass(frozen=True, kw_only=True)
class CompleteRequest:
    """A request that the checkpoint can do, with nothing left open. It goes to the ranks as JSON."""

    mode: Mode
    prompt: str
    negative_prompt: str | None
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    num_frames: int
    fps: float
    num_inference_steps: int
    guidance_scale: float
    guidance_interval: tuple[float, float] | None
    """First and last timestep at which guidance acts; None: all of them."""
    flow_shift: float | None
    """None only for a distilled checkpoint, whose schedule is fixed."""
    seed: int
    image: Path | None
    video: Path | None
    sound: bool
    plain_prompt: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        for field in ("image", "video"):
            fields[field] = None if fields[field] is None else Path(fields[field])
        interval = fields["guidance_interval"]
        fields["guidance_interval"] = None if interval is None else (interval[0], interval[1])
        return cls(**fields)


def complete(
    request: GenerationRequest, abilities: Abilities, output_suffix: str | None = None
) -> CompleteRequest:
    """Fill in what `request` leaves open and check all of it against what the checkpoint can do.

    `output_suffix` is that of the file to write (".png"), where one is known; it helps choose the mode.

    Raises RequestError with every problem. No file is opened: `armillary.engine.media` looks at those.
    """
    filled = _fill(request, abilities, output_suffix)
    problems = list(problems_of(request, filled, abilities))
    if problems:
        raise RequestError(problems)
    return filled


def _fill(request: GenerationRequest, abilities: Abilities, output_suffix: str | None) -> CompleteRequest:
    mode = request.mode or _implied_mode(request, output_suffix)
    published = defaults(mode, abilities)
    width, height = map(int, (request.size or published.size).split("x"))
    interval = request.guidance_interval
    return CompleteRequest(
        mode=mode,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        width=width,
        height=height,
        num_frames=_frames(request, published, abilities.temporal),
        fps=_given(request.fps, published.fps),
        num_inference_steps=_given(request.num_inference_steps, published.num_inference_steps),
        guidance_scale=_given(request.guidance_scale, published.guidance_scale),
        guidance_interval=None if interval == "none" else _given(interval, published.guidance_interval),
        flow_shift=_given(request.flow_shift, published.flow_shift),
        # 32 bits: a seed that survives JSON readers which keep numbers as doubles
        seed=_given(request.seed, secrets.randbelow(2**32)),
        image=request.image,
        video=request.video,
        sound=request.sound,
        plain_prompt=request.plain_prompt,
    )


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _implied_mode(request: GenerationRequest, output_suffix: str | None) -> Mode:
    if request.video is not None:
        return "video-to-video"
    if request.image is not None:
        return "image-to-video"
    if request.num_frames == 1 or (output_suffix or "").lower() in IMAGE_SUFFIXES:
        return "text-to-image"
    return "text-to-video"


def _frames(request: GenerationRequest, published: Defaults, step: int) -> int:
    """The frames asked for, as they are; `seconds` and the default are rounded up to `step * k + 1`."""
    if request.num_frames is not None:
        return request.num_frames
    if published.num_frames == 1:
        return 1
    length = _given(request.seconds, math.nan) * _given(request.fps, published.fps)
    # Rounded first: 0.7 s at 30 fps is a hair over 21 frames in binary, and 21 is meant.
    wanted = math.ceil(round(length, 6)) if math.isfinite(length) else published.num_frames
    return max(-(-(wanted - 1) // step) * step + 1, shortest(step))
