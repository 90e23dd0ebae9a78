"""The shapes that clients send and get: OpenAI's, with vLLM-Omni's fields, as `/docs` shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from armillary.engine.modes import INPUTS
from armillary.errors import list_choices
from armillary.serve.jobs import Job


class Generation(BaseModel):
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
    user: str | None = Field(default=None, max_length=1000, description="Written to the log.")


class VideoFields(Generation):
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


class ImageFields(Generation):
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
    """`status` is "ready", or why it is not: starting, loading, restarting, or degraded where the job store
    cannot be written."""

    status: str
    done: int | None = None
    """Bytes of weights that the first rank has read."""
    total: int | None = None
    error: str | None = None
    weights: list[int] | None = None
    """Bytes on each rank, of the transformer's weights."""
    memory: list[int] | None = None
    """Bytes on each rank, in all."""


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
        seconds=f"{round(job.length, 3):g}",
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
