"""What clients send and get: OpenAI's shapes, vLLM-Omni's fields, and Armillary's one request behind them.

The models below describe the fields for `/docs`, and say which there are. Their values are judged by
`GenerationRequest` and `complete`, as those of the command line and of Python are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from armillary.engine.modes import INPUTS
from armillary.engine.request import GenerationRequest
from armillary.errors import Problem, RequestError, list_choices
from armillary.serve.jobs import Job
from armillary.serve.media_access import REFERENCES, refused_reference
from armillary.serve.refusals import FieldProblem

_Text = Field(default=None, max_length=32_000)


class _Generation(BaseModel):
    """Fields of every generation."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(min_length=1, max_length=32_000, description="What to generate.")
    model: str | None = Field(default=None, description="One of the names in GET /v1/models.")
    negative_prompt: str | None = Field(default=None, description="What guidance leads away from.")
    size: str | None = Field(default=None, description="WIDTHxHEIGHT in pixels, such as 1280x720.")
    num_inference_steps: int | None = Field(default=None, description="Denoising steps.")
    guidance_scale: float | None = Field(default=None, description="1 runs without guidance.")
    guidance_interval: str | list[float] | None = Field(
        default=None, description="First and last timestep of guidance, such as 400,1000, or none."
    )
    flow_shift: float | None = Field(default=None, description="Shift of the noise schedule.")
    seed: int | None = Field(default=None, description="Of the noise; left out, one is drawn.")
    extra_params: dict[str, Any] | str | None = Field(
        default=None,
        description="An object, or its JSON text: guardrails (false), use_resolution_template, "
        "use_duration_template.",
    )
    user: str | None = Field(default=None, description="Written to the log.")


class VideoFields(_Generation):
    """`POST /v1/videos` and `/v1/videos/sync`. What is left out takes the mode's published default."""

    mode: str | None = Field(default=None, description=f"One of {list_choices([*INPUTS][1:])}.")
    seconds: float | str | None = Field(default=None, description="Length, rounded up to 4k+1 frames.")
    num_frames: int | None = Field(default=None, description="Frames, 4k+1.")
    fps: float | None = Field(default=None, description="Frames per second.")
    width: int | None = Field(default=None, description="With height, in place of size.")
    height: int | None = Field(default=None, description="With width, in place of size.")
    generate_sound: bool | str | None = Field(default=None, description="Generate sound with the video.")
    n: int | None = Field(default=None, description="1.")
    num_outputs_per_prompt: int | None = Field(default=None, description="1.")


class VideoForm(VideoFields):
    """The same as a form, with a picture to start from or a clip to continue."""

    input_reference: str | None = Field(
        default=None,
        description="A PNG, JPEG or WebP picture, or an MP4, WebM, Matroska or AVI video.",
        json_schema_extra={"format": "binary"},
    )


class ImageFields(_Generation):
    """`POST /v1/images/generations`."""

    n: int | None = Field(default=None, ge=1, le=10, description="Pictures, with seeds one apart.")
    response_format: Literal["b64_json"] | None = None
    output_format: Literal["png", "jpeg"] | None = None
    quality: Literal["auto"] | None = None
    background: Literal["auto"] | None = None
    moderation: Literal["auto"] | None = None
    stream: Literal[False] | None = None
    extra_args: dict[str, Any] | str | None = Field(default=None, description="As extra_params.")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class JobError(BaseModel):
    code: str
    message: str


class Video(BaseModel):
    """OpenAI's video object, and what Armillary knows beside it."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(ge=0, le=100)
    prompt: str
    size: str
    seconds: str
    created_at: int
    started_at: int | None
    completed_at: int | None
    expires_at: int | None
    error: JobError | None
    remixed_from_video_id: None = None
    mode: str
    seed: int
    num_frames: int
    fps: float
    num_inference_steps: int
    step: int | None
    """Denoising steps done, while it runs."""
    queue_position: int | None
    """Jobs before it, while it waits."""
    seconds_left: float | None
    attempts: int
    inference_time_s: float | None


class VideoPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class ImageData(BaseModel):
    b64_json: str
    seed: int


class Images(BaseModel):
    created: int
    data: list[ImageData]
    output_format: Literal["png", "jpeg"]
    size: str


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "armillary"


class Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """`status` is "ready", or why it is not: starting, loading or restarting."""

    status: str
    done: int | None = None
    """Bytes of weights that the first rank has read."""
    total: int | None = None
    error: str | None = None
    weights: list[int] | None = None
    """Bytes on each rank, of the transformer's weights."""
    memory: list[int] | None = None
    """Bytes on each rank, in all."""


# --------------------------------------------------------------------------- from fields to a request

_ONE_ONLY = ("n", "num_outputs_per_prompt")
_NOT_PASSED_ON = {"model", "user", "extra_params", "extra_args", "width", "height", "generate_sound"}


def video_request(
    fields: Mapping[str, Any], upload: tuple[Literal["image", "video"], str] | None, names: tuple[str, ...]
) -> GenerationRequest:
    """The request that the fields of a video ask for; `upload` is the kind and the path of a sent file.

    Raises RequestError with every problem of form, each with the client's name of the field.
    """
    given, problems = _known(fields, VideoFields, names)
    passed = {key: value for key, value in given.items() if key not in {*_NOT_PASSED_ON, *_ONE_ONLY}}
    for field in _ONE_ONLY:
        if str(given.get(field, 1)) != "1":
            problems.append(FieldProblem("one-output", f"{field} is 1 for videos", "leave it out", field))
    problems += _size(given, passed)
    if "generate_sound" in given:
        passed["sound"] = given["generate_sound"]
    passed["plain_prompt"] = _plain_prompt(given, problems, both=True)
    if upload is not None:
        passed[upload[0]] = upload[1]
    if passed.get("mode") == "text-to-image":
        fix = "use POST /v1/images/generations"
        problems.append(FieldProblem("mode", "text-to-image makes no video", fix, "mode"))
    if "mode" not in passed:
        passed["mode"] = f"{upload[0]}-to-video" if upload else "text-to-video"
    return _parsed(passed, problems)


def image_request(fields: Mapping[str, Any], names: tuple[str, ...]) -> tuple[GenerationRequest, int, str]:
    """The request that the fields of a picture ask for, how many of them, and the ending of their files."""
    given, problems = _known(fields, ImageFields, names)
    legal = {
        "response_format": ("b64_json",),
        "output_format": ("png", "jpeg"),
        "quality": ("auto",),
        "background": ("auto",),
        "moderation": ("auto",),
        "stream": (False,),
        "n": tuple(range(1, 11)),
    }
    for field, values in legal.items():
        value = given.get(field, values[0])
        if not any(value == one and type(value) is type(one) for one in values):
            choices = list_choices([json.dumps(one) for one in values])
            why = f"{field} must be {choices}, not {_shown(value)}"
            problems.append(FieldProblem("field-form", why, "", field))
    passed = {key: value for key, value in given.items() if key not in {*_NOT_PASSED_ON, *legal}}
    if passed.get("size") == "auto":
        del passed["size"]
    passed |= {"mode": "text-to-image", "plain_prompt": _plain_prompt(given, problems, both=False)}
    request = _parsed(passed, problems)
    return request, given.get("n", 1), f".{given.get('output_format', 'png')}"


def _parsed(passed: Mapping[str, Any], problems: list[Problem]) -> GenerationRequest:
    request = None
    try:
        request = GenerationRequest.parse(passed)
    except RequestError as error:
        problems = [*problems, *error.problems]
    if problems or request is None:
        raise RequestError(problems)
    return request


def _known(
    fields: Mapping[str, Any], shape: type[_Generation], names: tuple[str, ...]
) -> tuple[dict[str, Any], list[Problem]]:
    """The fields that were given (null is not), and what is wrong with those that there are not."""
    given = {key: value for key, value in fields.items() if value is not None}
    problems: list[Problem] = []
    for key in [key for key in given if key not in shape.model_fields]:
        del given[key]
        root = key.split("[", 1)[0]  # how OpenAI's client writes an object in a form
        if root in REFERENCES or root == "input_reference":
            problems.append(refused_reference(root))
        else:
            fix = f"the fields are {', '.join(shape.model_fields)}"
            problems.append(FieldProblem("field-unknown", f"unknown field {_shown(key)}", fix, key))
    for key in ("model", "user"):
        if not isinstance(given.get(key, ""), str):
            why = f"{key} must be text, not {_shown(given[key])}"
            problems.append(FieldProblem("field-form", why, "", key))
    model = given.get("model")
    if isinstance(model, str) and model not in names:
        why = f"there is no model {_shown(model)} here"
        problems.append(FieldProblem("model-not-found", why, f"use {list_choices(names)}", "model"))
    return given, problems


def _size(given: Mapping[str, Any], passed: dict[str, Any]) -> Iterator[Problem]:
    sides = [side for side in ("width", "height") if side in given]
    if not sides:
        return
    if "size" in given:
        yield FieldProblem("size-twice", f"size and {sides[0]} are both given", "give one", sides[0])
    elif len(sides) == 1:
        yield FieldProblem("size-half", f"{sides[0]} comes without the other side", "give both", sides[0])
    for side in sides:
        if isinstance(given[side], bool) or not str(given[side]).isdecimal():
            why = f"{side} must be a whole number of pixels, not {_shown(given[side])}"
            yield FieldProblem("field-form", why, "", side)
            return
    passed["size"] = f"{given.get('width', 0)}x{given.get('height', 0)}"


def _plain_prompt(given: Mapping[str, Any], problems: list[Problem], *, both: bool) -> bool:
    """Whether the extra parameters ask for prompts without added sentences; other parameters are refused."""
    templates = {"use_resolution_template": True, "use_duration_template": True}
    for field in ("extra_params", "extra_args"):
        for key, value in _extra(given.get(field, {}), field, problems).items():
            name = f"{field}.{key}"
            if key in templates and isinstance(value, bool):
                templates[key] = value
            elif key == "guardrails" and value is False:
                continue  # as it is
            elif key == "guardrails":
                why = "this server runs no guardrails, so guardrails can only be false"
                problems.append(FieldProblem("guardrails", why, "send false, or leave it out", name))
            else:
                fix = f"it may have guardrails (false), {' and '.join(templates)} (true or false)"
                why = f"{field} has {_shown(key)}: {_shown(value)}"
                problems.append(FieldProblem("extra-params", why, fix, name))
    resolution, duration = templates.values()
    if both and resolution != duration:
        why = "use_resolution_template and use_duration_template are switched together"
        problems.append(FieldProblem("extra-params", why, "give both the same value", "extra_params"))
    return not resolution


def _extra(value: Any, field: str, problems: list[Problem]) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, dict):
        return value
    problems.append(FieldProblem("field-form", f"{field} must be a JSON object", "", field))
    return {}


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return "what was sent"
    return text if len(text) <= 60 else f"{text[:57]}..."


# ------------------------------------------------------------------------------ from a job to its shape


def video_of(
    job: Job,
    *,
    max_age: float,
    step: int | None = None,
    position: int | None = None,
    seconds_left: float | None = None,
) -> Video:
    """The video object of a job. `step`, `position` and `seconds_left` are those of the moment."""
    fields, done = job.fields, job.status == "completed"
    steps = fields["num_inference_steps"]
    ended = job.completed_at
    return Video(
        id=job.id,
        model=job.model,
        status=job.status,  # type: ignore[arg-type]  # a cancelled one is not shown
        progress=100 if done else min(99, 100 * (step or 0) // steps),
        prompt=fields["prompt"],
        size=job.size,
        seconds=f"{job.length:g}",
        created_at=int(job.created_at),
        started_at=_whole(job.started_at),
        completed_at=_whole(ended),
        expires_at=None if ended is None else int(ended + max_age),
        error=_error_of(job) if job.status == "failed" else None,
        mode=fields["mode"],
        seed=fields["seed"],
        num_frames=fields["num_frames"],
        fps=fields["fps"],
        num_inference_steps=steps,
        step=steps if done else step,
        queue_position=position,
        seconds_left=None if seconds_left is None else round(seconds_left, 1),
        attempts=job.attempts,
        inference_time_s=job.run_seconds,
    )


def _error_of(job: Job) -> JobError:
    return JobError(code=job.error_code or "failed", message=job.error_message or "the job failed")


def _whole(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
