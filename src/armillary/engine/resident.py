"""A checkpoint loaded on this rank once, and one request after another run on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.media import Media
from armillary.engine.pipeline import build_pipeline, run_pipeline, set_schedule
from armillary.engine.request import CompleteRequest
from armillary.layout import Layout
from armillary.residency import Residency

if TYPE_CHECKING:
    import torch

    from armillary.engine.worker import Rank
    from armillary.parallel.mesh import Mesh


@dataclass(frozen=True)
class Made:
    """What one request made, and when."""

    media: Media | None
    """On the first rank only, and only where it was not written."""
    first_call: float
    """`time.monotonic()` of the first call of the transformer."""
    steps: tuple[float, ...]
    """`time.monotonic()` of the start and of the end of every step."""

    @property
    def seconds_per_step(self) -> float:
        # the first step also computes the prompts; where there are others, they are what a step takes
        steady = self.steps[1:] if len(self.steps) > 2 else self.steps
        return (steady[-1] - steady[0]) / (len(steady) - 1)


class Resident:
    """The transformer and its pipeline on this rank. All ranks make one, and call `run` together."""

    def __init__(self, mesh: Mesh, transformer: Any, pipeline: Any) -> None:
        self.mesh = mesh
        self.transformer = transformer
        self.pipeline = pipeline
        self._first_call = 0.0
        transformer.register_forward_pre_hook(self._note_call)

    @classmethod
    def load(cls, payload: Mapping[str, Any], request: CompleteRequest, rank: Rank, mesh: Mesh) -> Resident:
        """This rank's part of what `Job.payload` names, with all components that `request` needs."""
        import torch

        from armillary.models.cosmos3 import UNUSED_BY_GENERATION
        from armillary.parallel.load import load

        folder, dtype = Path(payload["folder"]), getattr(torch, payload["dtype"])
        transformer = load(
            folder,
            subfolder="transformer",
            layout=mesh.layout,
            mesh=mesh,
            dtype=dtype,
            device=rank.device,
            plan=payload["plan"],
            residency=Residency(**payload["residency"]),
            prefill=True,
            leave_out=UNUSED_BY_GENERATION,
        )
        return cls(mesh, transformer, build_pipeline(folder, request, transformer, dtype))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformer's weights on this rank."""
        # by storage: what stands in for weights that live elsewhere has a shape, but no memory
        return sum(parameter.untyped_storage().nbytes() for parameter in self.transformer.parameters())

    def run(
        self,
        request: CompleteRequest,
        rank: Rank,
        on_step: Callable[[int], None],
        write: Callable[[Media], None] | None = None,
        on_frames: Callable[[], None] = lambda: None,
    ) -> Made:
        """Run one request; `on_step(i)` follows step i, on all ranks, and may raise on all of them. The first
        rank gives `write` what is made, with frames that are decoded while it takes them, and `on_frames` as
        `run_pipeline` has it.

        Raises EngineError where the ranks end with different latents, and NotFiniteError.
        """
        from armillary.parallel.fingerprint import fingerprint

        set_schedule(self.pipeline, request)
        rank.heartbeat.beat("computing", step=0, steps=request.num_inference_steps)
        self._first_call = 0.0
        clock = [time.monotonic()]

        def stepped(i: int) -> None:
            clock.append(time.monotonic())
            rank.heartbeat.beat(step=i + 1)
            on_step(i)

        def agree(latents: torch.Tensor) -> None:
            self.mesh.everyone.agree("the final latents", {"latents": fingerprint(latents)})

        media, _ = run_pipeline(
            self.pipeline, request, self.mesh, stepped, on_latents=agree, on_frames=on_frames, write=write
        )
        return Made(media, self._first_call, tuple(clock))

    def _note_call(self, *_: object) -> None:
        self._first_call = self._first_call or time.monotonic()


def mesh_of(payload: Mapping[str, Any]) -> Mesh:
    """The mesh of the layout in a payload."""
    from armillary.parallel.mesh import build_mesh

    return build_mesh(Layout(**payload["layout"]))
