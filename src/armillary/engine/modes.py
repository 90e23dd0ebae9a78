"""The modes of a generation: what each takes besides the prompt, and its published settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from armillary.engine.abilities import Abilities

Mode = Literal[
    "text-to-image",
    "text-to-video",
    "image-to-video",
    "video-to-video",
    "policy",
    "forward-dynamics",
    "inverse-dynamics",
    "transfer",
]

INPUTS: Mapping[str, str | None] = {
    "text-to-image": None,
    "text-to-video": None,
    "image-to-video": "image",
    "video-to-video": "video",
}
"""The modes that run, each with the field that holds its input."""


def runnable_modes(abilities: Abilities) -> tuple[str, ...]:
    """The modes that this version runs with such a checkpoint."""
    if abilities.distilled:
        return ("text-to-image", "image-to-video")
    return tuple(mode for mode in INPUTS if not (abilities.edge and mode == "video-to-video"))


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a field that is left out becomes."""

    size: str
    """WIDTHxHEIGHT in pixels."""
    num_frames: int
    num_inference_steps: int
    guidance_scale: float
    guidance_interval: tuple[float, float] | None
    """First and last timestep at which guidance acts; None: all of them."""
    flow_shift: float | None
    """None where the schedule is fixed."""
    fps: float = 24.0


# Published by NVIDIA (Cosmos 3 model reference); those of Edge and the interval are vLLM-Omni 0.30's.
_VIDEO = Defaults(
    size="1280x720",
    num_frames=189,
    num_inference_steps=35,
    guidance_scale=6.0,
    guidance_interval=None,
    flow_shift=10.0,
)
_IMAGE = Defaults(
    size="1024x1024",
    num_frames=1,
    num_inference_steps=50,
    guidance_scale=7.0,
    guidance_interval=(400.0, 1000.0),
    flow_shift=3.0,
)
_EDGE_VIDEO = replace(_VIDEO, size="832x480", guidance_scale=5.0, flow_shift=3.0)
_EDGE_IMAGE = replace(_IMAGE, size="640x640")


def defaults(mode: Mode, abilities: Abilities) -> Defaults:
    """The published settings of `mode` for the checkpoint's family, or what the checkpoint prefers."""
    image, video = (_EDGE_IMAGE, _EDGE_VIDEO) if abilities.edge else (_IMAGE, _VIDEO)
    published = image if mode == "text-to-image" else video
    if abilities.preferred:
        published = replace(published, **abilities.preferred)
        if mode == "text-to-image":
            published = replace(published, num_frames=1, guidance_interval=None)
    if not abilities.distilled:
        return published
    return replace(
        published,
        num_inference_steps=abilities.distilled_steps or published.num_inference_steps,
        guidance_scale=1.0,
        guidance_interval=None,
        flow_shift=None,
    )
