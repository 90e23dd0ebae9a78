"""What is to be generated, in the numbers that cost something."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from armillary.engine.request import CompleteRequest

PROMPT_TOKENS = 256
"""Of a prompt that is not known yet: NVIDIA advises under 300 words."""

_TEMPLATE_TOKENS = 40
_CHARACTERS_PER_TOKEN = 4
_TIMESTEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One generation."""

    mode: str
    width: int
    """Pixels."""
    height: int
    frames: int
    fps: float
    steps: int
    guided_steps: int
    """Steps at which both branches of guidance are computed; at the others only one is."""
    prompt_tokens: int
    sound: bool = False

    @property
    def forwards(self) -> int:
        """Passes through the model, one branch each."""
        return self.steps + self.guided_steps

    @property
    def guided(self) -> bool:
        """Whether there are two branches at all."""
        return self.guided_steps > 0

    @property
    def sound_seconds(self) -> float:
        """Length of the sound that is generated beside the pictures."""
        return self.frames / self.fps if self.sound else 0.0

    def __str__(self) -> str:
        return f"{self.mode} {self.width}x{self.height}x{self.frames}, {self.steps} steps"


def workload_of(
    request: CompleteRequest, *, prompt_given: bool = True, text_rows: int | None = None, guided: bool = True
) -> Workload:
    """The numbers of a complete request.

    Args:
        prompt_given: its prompt is the one to be used, and not only some text.
        text_rows: of a model that pads every prompt to as many.
        guided: False for a model whose guidance is an input, or baked in.
    """
    estimated = _TEMPLATE_TOKENS + ceil(len(request.prompt) / _CHARACTERS_PER_TOKEN)
    return Workload(
        mode=request.mode,
        width=request.width,
        height=request.height,
        frames=request.num_frames,
        fps=request.fps,
        steps=request.num_inference_steps,
        guided_steps=_guided_steps(request) if guided else 0,
        prompt_tokens=text_rows or (estimated if prompt_given else PROMPT_TOKENS),
        sound=request.sound,
    )


def _guided_steps(request: CompleteRequest) -> int:
    """How many of the schedule's timesteps lie in the guidance interval.

    Of flow matching with shift s, step i of n is at 1000 s u / (1 + (s - 1) u), u = 1 - i / n.
    """
    steps, interval = request.num_inference_steps, request.guidance_interval
    if request.guidance_scale == 1:
        return 0
    if interval is None:
        return steps
    shift = request.flow_shift or 1.0
    lowest, highest = interval
    even = (1 - step / steps for step in range(steps))
    timesteps = (_TIMESTEPS * shift * u / (1 + (shift - 1) * u) for u in even)
    return sum(lowest <= timestep <= highest for timestep in timesteps)
