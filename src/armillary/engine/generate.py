"""`armillary.generate`: everything is checked first, then ranks are started and one generation is run."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.checkpoint.locate import locate
from armillary.engine.abilities import abilities
from armillary.engine.launch import run
from armillary.engine.media import Media, check_output, probe_media, write_media
from armillary.engine.request import CompleteRequest, GenerationRequest, complete
from armillary.errors import LayoutError, Problem, Refusals, RequestError, list_choices
from armillary.layout import Layout
from armillary.models.described import DescribedCheckpoint, describe
from armillary.models.registry import resolve
from armillary.plan.resolve import ResolvedPlan
from armillary.progress import progress_bar

if TYPE_CHECKING:
    from armillary.engine.worker import Rank

_TASK = "armillary.engine.generate:generate_on_rank"


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """What `generate` gives back."""

    request: CompleteRequest
    """The request with every default filled in."""
    output: Path | None
    """The file that was written, where one was asked for."""
    media: Media | None
    """Frames, latents and sound, where no file was asked for."""
    dtype: str
    """Of the weights and the computation."""
    seconds_per_step: float
    weight_bytes: tuple[int, ...]
    """Bytes of transformer weights on each rank."""

    @property
    def seed(self) -> int:
        """The seed of the noise, also when it was drawn."""
        return self.request.seed


def generate(
    request: GenerationRequest | Mapping[str, Any],
    checkpoint: str | Path,
    layout: Layout = Layout(),
    *,
    dtype: str | None = None,
    output: str | Path | None = None,
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
) -> GenerationResult:
    """Generate one picture or video.

    Ranks are started on this machine, as many as `layout` has; under `torchrun` its processes are the
    ranks, and every one of them calls this.

    Args:
        request: what to make; a mapping of its fields is taken too.
        checkpoint: a folder or hub id in the published layout.
        layout: the degrees.
        dtype: torch's name of a dtype; None takes the one in which most of the transformer is stored.
        output: .mp4, .png, .jpg or .npz; None gives the arrays back instead.
        step_timeout, init_timeout: seconds after which a rank that shows no progress has stalled.

    Raises:
        ArmillaryError: (RequestError, CheckpointError, LayoutError, ...) everything that is wrong with
            what was asked, before a weight is read or a process started.
        EngineError: a rank raised, died or stalled.
    """
    target = None if output is None else Path(output).absolute()
    job = prepare(request, checkpoint, layout, dtype=dtype, output=target)
    with tempfile.TemporaryDirectory(prefix="armillary-") as scratch:
        made = target or Path(scratch) / "result.npz"
        told = run(
            _TASK,
            job.payload(made),
            layout.world_size,
            step_timeout=step_timeout,
            init_timeout=init_timeout,
        )
        return GenerationResult(
            request=job.request,
            output=target,
            media=_read_back(made, job.request) if target is None and made.exists() else None,
            dtype=job.dtype,
            seconds_per_step=told["seconds_per_step"],
            weight_bytes=tuple(told["weight_bytes"]),
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """A generation that has passed every check."""

    request: CompleteRequest
    folder: Path
    layout: Layout
    dtype: str
    resolved: ResolvedPlan

    def payload(self, output: Path) -> dict[str, Any]:
        """What the ranks are told, as JSON."""
        return {
            "request": self.request.to_json(),
            "folder": str(self.folder),
            "layout": self.layout.degrees,
            "dtype": self.dtype,
            "output": str(output),
        }


def prepare(
    request: GenerationRequest | Mapping[str, Any],
    checkpoint: str | Path,
    layout: Layout,
    *,
    dtype: str | None = None,
    output: Path | None = None,
) -> Job:
    """Check everything that can be checked from configs, headers and the input files.

    Raises `ArmillaryError` with every problem at once. Neither torch nor diffusers is imported.
    """
    refusals = Refusals()
    with refusals.collect():
        request = request if isinstance(request, GenerationRequest) else GenerationRequest.parse(request)
    with refusals.collect():
        _require_built(layout)
    with refusals.collect():
        check_dtype(dtype)
    folder = ability = described = filled = resolved = None
    with refusals.collect():
        folder = locate(checkpoint, whole=True)
        ability = abilities(folder)
    with refusals.collect():
        if ability and isinstance(request, GenerationRequest):
            refusals.add(RequestError, probe_media(request))
            filled = complete(request, ability, output.suffix if output else None)
    with refusals.collect():
        if output:
            refusals.add(RequestError, check_output(output, filled.num_frames if filled else None))
    with refusals.collect():
        if folder and ability:
            described = describe(folder / "transformer")
            dtype = dtype or main_dtype(described)
            described = describe(folder / "transformer", dtype=dtype)
            resolved = resolve(described.skeleton, layout)
    refusals.raise_if_any()
    assert folder and filled, "a check neither raised nor gave its result"
    assert resolved and dtype, "a check neither raised nor gave its result"
    return Job(request=filled, folder=folder, layout=layout, dtype=dtype, resolved=resolved)


DTYPES = ("float32", "bfloat16", "float16")
"""In which a generation can be computed."""


def check_dtype(dtype: str | None) -> None:
    """Raise `RequestError` for a dtype that a generation cannot be computed in."""
    if dtype is not None and dtype not in DTYPES:
        raise RequestError(Problem("dtype", f"dtype {dtype!r} is unknown", f"use {list_choices(DTYPES)}"))


def main_dtype(described: DescribedCheckpoint) -> str:
    """The dtype in which most bytes of the transformer are stored."""
    totals: Counter[str] = Counter()
    for parameter in described.skeleton.parameters.values():
        totals[parameter.dtype] += parameter.nbytes
    return totals.most_common(1)[0][0]


def _require_built(layout: Layout) -> None:
    """Only tp is run by this version."""
    unbuilt = {axis: degree for axis, degree in layout.degrees.items() if axis != "tp" and degree > 1}
    if unbuilt:
        raise LayoutError(
            Problem("axis-built", f"{axis}={degree}: this version generates over tp only", f"use {axis}=1")
            for axis, degree in unbuilt.items()
        )


def generate_on_rank(payload: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """The part of `generate` that runs on every rank; the first one writes the result."""
    import torch

    from armillary.engine.pipeline import build_pipeline, run_pipeline
    from armillary.parallel.fingerprint import fingerprint
    from armillary.parallel.load import load
    from armillary.parallel.mesh import build_mesh

    request = CompleteRequest.from_json(payload["request"])
    folder, dtype = Path(payload["folder"]), getattr(torch, payload["dtype"])
    mesh = build_mesh(Layout(**payload["layout"]))
    mesh.tp.agree("what to do", {key: value for key, value in payload.items() if key in ("request", "dtype")})
    transformer = load(
        folder, subfolder="transformer", mesh=mesh, layout=mesh.layout, dtype=dtype, device=rank.device
    )
    pipeline = build_pipeline(folder, request, transformer, dtype)
    steps = request.num_inference_steps
    rank.heartbeat.beat("computing", step=0, steps=steps)
    started = time.monotonic()
    with progress_bar("Denoising", steps, unit="steps", shown=mesh.is_first) as advance:

        def on_step(i: int) -> None:
            rank.heartbeat.beat(step=i + 1)
            advance(1)

        media, latents = run_pipeline(pipeline, request, decode=mesh.is_first, on_step=on_step)
    seconds = time.monotonic() - started
    mesh.tp.agree("the final latents", {"latents": fingerprint(latents)})
    if media is not None:
        write_media(media, payload["output"])
    held = sum(p.nbytes for p in transformer.parameters())
    return {"seconds_per_step": seconds / steps, "weight_bytes": mesh.tp.share(held)}


def _read_back(path: Path, request: CompleteRequest) -> Media:
    import numpy as np

    with np.load(path) as arrays:
        return Media(
            frames=arrays["frames"],
            latents=arrays["latents"],
            fps=request.fps,
            sound=arrays.get("sound"),
            sampling_rate=int(arrays["sampling_rate"]) if "sampling_rate" in arrays else None,
        )
