"""Whole generations down to the final latents, in one process and on ranks, for the parity tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import av
import numpy as np
import torch
from PIL import Image

from armillary.engine.abilities import abilities
from armillary.engine.pipeline import build_pipeline, run_pipeline
from armillary.engine.request import CompleteRequest, GenerationRequest, complete
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import VARIANTS, write_tiny
from armillary.parallel.load import load
from armillary.parallel.mesh import Mesh, build_mesh

Latents = dict[str, torch.Tensor]
"""By what they are of: "vision", and "sound" where there is some."""

MODES = ("text-to-image", "text-to-video", "image-to-video", "video-to-video")
DEGREES = (2, 4, 8)
DTYPES = ("float32", "bfloat16")
# odd and even numbers of vision and text tokens; latents of odd height and width, which are padded
SHAPES = (("96x32", 9), ("48x80", 5), ("80x48", 5), ("32x96", 9))
_EVERYTHING = "silu"
"""A variant with every part that a pipeline can have."""
PROMPTS = ("a red ball rolls", "two arms pour tea", "snow", "a robot folds the towels")


@dataclass(frozen=True)
class Row:
    """One generation on ranks, to be compared with the same in one process."""

    variant: str
    mode: str
    sound: bool
    tp: int
    dtype: str
    fault: str = ""

    @property
    def label(self) -> str:
        what = f"{self.mode}{'+sound' if self.sound else ''}"
        return "-".join(filter(None, (self.variant, what, f"tp{self.tp}", self.dtype, self.fault)))

    @property
    def is_possible(self) -> bool:
        """Whether there is such a generation; Edge (ReLU²) continues no video."""
        options = VARIANTS[self.variant]
        if options.variant == "relu2" and (self.sound or self.mode == "video-to-video"):
            return False
        return not self.sound or (options.sound and self.mode != "text-to-image")

    def as_json(self) -> list[Any]:
        return list(asdict(self).values())


def all_rows() -> list[Row]:
    """Every variant, mode, degree and dtype."""
    choices = itertools.product(VARIANTS, MODES, (False, True), DEGREES, DTYPES)
    return [row for choice in choices if (row := Row(*choice)).is_possible]


class Choice(Protocol):
    """What `pairwise` may choose from."""

    def as_json(self) -> list[Any]: ...


C = TypeVar("C", bound=Choice)


def pairwise(rows: Sequence[C]) -> list[C]:
    """A few rows in which every two choices meet that meet in any of `rows`: most new pairs first."""
    rows = random.Random(0).sample(rows, len(rows))  # so that no choice is favoured for being listed first

    def pairs(row: C) -> set[Any]:
        return set(itertools.combinations(enumerate(row.as_json()), 2))

    missing = set().union(*map(pairs, rows))
    chosen = []
    while missing:
        chosen.append(max(rows, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def write_checkpoint(folder: Path, variant: str, layers: int) -> Path:
    """The tiny checkpoint of a variant, unless it is there."""
    target = folder / variant
    return target if target.exists() else write_tiny(target, replace(VARIANTS[variant], layers=layers))


def write_media(folder: Path) -> None:
    """A picture and a clip that every mode can start from."""
    frames = (
        np.random.default_rng(0).integers(0, 256, (9, 12, 12, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    )
    Image.fromarray(frames[0]).save(folder / "start.png")
    with av.open(folder / "start.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width = stream.height = 96
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


def request_of(row: Row, checkpoint: Path, media: Path, steps: int) -> CompleteRequest:
    """What both sides are asked for; it does not depend on degree and dtype."""
    number = sorted(VARIANTS).index(row.variant) + MODES.index(row.mode)
    size, frames = SHAPES[number % len(SHAPES)]
    # the first two latent frames of a continued video are given, and 5 frames have no more
    frames = 9 if row.mode == "video-to-video" else frames
    fields = {
        "prompt": PROMPTS[number % len(PROMPTS)],
        "negative_prompt": PROMPTS[(number + 1) % len(PROMPTS)],
        "mode": row.mode,
        "size": size,
        "num_frames": 1 if row.mode == "text-to-image" else frames,
        "num_inference_steps": steps,
        "guidance_scale": 6.0,
        "seed": number,
        "image": media / "start.png" if row.mode == "image-to-video" else None,
        "video": media / "start.mp4" if row.mode == "video-to-video" else None,
        "sound": row.sound,
    }
    return complete(GenerationRequest.parse(fields), abilities(checkpoint))


class Recorded:
    """A pipeline that keeps the state it ended with, for latents that are no part of a result."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.state: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __call__(self, **arguments: Any) -> Any:
        self.state = self._pipeline(**arguments)
        return self.state


class Generations:
    """Runs rows in this process, alone or as one of the ranks of a mesh."""

    def __init__(self, folder: Path, steps: int, layers: int) -> None:
        self.folder = folder
        self.steps = steps
        self.layers = layers
        self._pipelines: dict[Any, Any] = {}

    def latents(
        self,
        row: Row,
        dtype: str,
        mesh: Mesh | None = None,
        change: Callable[[Any, Mesh], None] | None = None,
    ) -> Latents:
        """The final latents of a row, computed in `dtype`; `change` is applied to the loaded transformer."""
        mesh = mesh or build_mesh(Layout())
        checkpoint = write_checkpoint(self.folder, row.variant, self.layers)
        transformer = load(
            checkpoint,
            subfolder="transformer",
            layout=mesh.layout,
            mesh=mesh,
            dtype=getattr(torch, dtype),
            progress=False,
        )
        if dtype == "float64":
            transformer.double()  # the time embedder is loaded in float32
        if change:
            change(transformer, mesh)
        request = request_of(row, checkpoint, self.folder, self.steps)
        pipeline = Recorded(self._pipeline(request, dtype, transformer))
        run_pipeline(pipeline, request, mesh, on_step=lambda i: None)
        sound = {"sound": pipeline.state.get("sound_latents")} if row.sound else {}
        return {"vision": pipeline.state.get("latents"), **sound}

    def _pipeline(self, request: CompleteRequest, dtype: str, transformer: Any) -> Any:
        """One for all rows of a dtype and schedule, which differ in nothing else but the transformer."""
        key = (dtype, request.flow_shift)
        if key not in self._pipelines:
            others = torch.bfloat16 if dtype == "bfloat16" else torch.float32
            checkpoint = write_checkpoint(self.folder, _EVERYTHING, self.layers)
            self._pipelines[key] = build_pipeline(
                checkpoint, replace(request, sound=True), transformer, others
            )
        self._pipelines[key].update_components(transformer=transformer)
        return self._pipelines[key]


def blocks(rows: Sequence[Row], world_size: int) -> Iterator[tuple[Row, int]]:
    """Each row with the first rank of the block of ranks that runs it: blocks take turns."""
    turn = dict.fromkeys(DEGREES, 0)
    for row in rows:
        yield row, turn[row.tp] % (world_size // row.tp) * row.tp
        turn[row.tp] += 1
