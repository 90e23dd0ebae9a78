"""`armillary.generate`: everything is checked first, then ranks are started and one generation is run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.launch import run
from armillary.engine.media import Media, read_arrays, write_media
from armillary.engine.prepare import prepare
from armillary.engine.request import CompleteRequest, GenerationRequest
from armillary.layout import Layout
from armillary.progress import progress_bar
from armillary.residency import Residency

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
    layout: Layout
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
    layout: Layout | Mapping[str, int] = Layout(),
    *,
    dtype: str | None = None,
    residency: Residency | Mapping[str, Any] | None = None,
    overrides: Mapping[str, object] | None = None,
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
        layout: the degrees; a mapping of axis to degree is taken too.
        dtype: torch's name of a dtype; None takes the one in which most of the transformer is stored.
        residency: where the weights of the blocks live, a `Residency` or fields of it; where they leave
            `evict` open, what only the prompt needs leaves a device that it would crowd.
        overrides: merged into the registered plan key by key.
        output: .mp4, .png, .jpg or .npz; None gives the arrays back instead.
        step_timeout: seconds after which a rank that shows no progress has stalled.
        init_timeout: the same for the time until every rank is ready.

    Raises:
        ArmillaryError: (RequestError, CheckpointError, LayoutError, ...) everything that is wrong with
            what was asked, before a weight is read or a process started.
        EngineError: a rank raised, died or stalled.
    """
    target = None if output is None else Path(output).absolute()
    job = prepare(
        request,
        checkpoint,
        layout,
        dtype=dtype,
        residency=residency,
        overrides=overrides,
        output=target,
        here=True,
    )
    with tempfile.TemporaryDirectory(prefix="armillary-") as scratch:
        made = target or Path(scratch) / "result.npz"
        told = run(
            _TASK,
            job.payload(made),
            job.layout.world_size,
            step_timeout=step_timeout,
            init_timeout=init_timeout,
        )
        return GenerationResult(
            request=replace(job.request, seed=told["seed"]),
            output=target,
            media=read_arrays(made, job.request.fps) if target is None and made.exists() else None,
            layout=job.layout,
            dtype=job.dtype,
            seconds_per_step=told["seconds_per_step"],
            weight_bytes=tuple(told["weight_bytes"]),
        )


def generate_on_rank(payload: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """The part of `generate` that runs on every rank; the first one writes the result."""
    from armillary.engine.resident import Resident, mesh_of

    request = CompleteRequest.from_json(payload["request"])
    mesh = mesh_of(payload)
    # under torchrun every process has drawn a seed of its own where none was asked for
    request = replace(request, seed=mesh.everyone.share(request.seed)[0])
    payload = {**payload, "request": request.to_json()}
    payload["residency"] = mesh.everyone.share(payload["residency"])[0]  # of memory that another may not have
    if mesh.is_first:
        evicts = "  prompt weights leave the device" if payload["residency"]["evict"] else ""
        print(f"seed {request.seed}  {payload['dtype']}  {mesh.layout}{evicts}", file=sys.stderr, flush=True)
    mesh.everyone.agree("what to do", {key: payload[key] for key in ("request", "layout", "dtype")})
    resident = Resident.load(payload, request, rank, mesh)
    steps = request.num_inference_steps
    with progress_bar("Denoising", steps, unit="steps", shown=mesh.is_first) as advance:
        made = resident.run(
            request, rank, lambda _: advance(1), write=lambda media: write_media(media, payload["output"])
        )
    return {
        "seed": request.seed,
        "seconds_per_step": made.seconds_per_step,
        "weight_bytes": mesh.everyone.share(resident.weight_bytes),
    }
