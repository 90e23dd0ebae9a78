"""The pipeline's denoiser block, replaced by one that knows the guidance interval and the cfg axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from armillary.errors import EngineError, Problem

if TYPE_CHECKING:
    from armillary.parallel.collectives import Group

_VELOCITIES = ("velocity_vision", "velocity_sound", "velocity_action")


@contextmanager
def own_denoiser(
    pipeline: Any, interval: tuple[float, float] | None, cfg: Group, on_step: Callable[[int], None]
) -> Iterator[None]:
    """While inside, guidance acts only at timesteps in `interval`, its two branches are computed on the two
    ranks of `cfg` (where that has two), and `on_step(i)` follows step i.

    The block stands in several places of the pipeline's blocks (vision, vision_sound, ...); each is
    replaced on this pipeline's own instance and put back afterwards. The library stays as it is.
    """
    loops = list(_denoising_loops(pipeline._blocks))
    if not loops:
        raise EngineError(
            Problem(
                "denoiser",
                f"{type(pipeline).__name__} has no Cosmos3LoopDenoiser block, so guidance cannot be steered",
                "use the diffusers version that Armillary pins",
            )
        )
    stock = [loop.sub_blocks["denoiser"] for loop in loops]
    try:
        for loop in loops:
            loop.sub_blocks["denoiser"] = _denoiser(interval, cfg, on_step)
            loop.set_progress_bar_config(disable=True)  # every rank would show one
        yield
    finally:
        for loop, denoiser in zip(loops, stock, strict=True):
            loop.sub_blocks["denoiser"] = denoiser
            loop.set_progress_bar_config(disable=False)


def _denoising_loops(block: Any) -> Iterator[Any]:
    """Every loop block, however deep, that runs the stock denoiser."""
    from diffusers.modular_pipelines.cosmos.denoise import Cosmos3LoopDenoiser

    sub_blocks = getattr(block, "sub_blocks", None) or {}
    if type(sub_blocks.get("denoiser")) is Cosmos3LoopDenoiser:
        yield block
    for child in sub_blocks.values():
        yield from _denoising_loops(child)


def _denoiser(interval: tuple[float, float] | None, cfg: Group, on_step: Callable[[int], None]) -> Any:
    from diffusers.modular_pipelines.cosmos.denoise import Cosmos3LoopDenoiser

    class GuidanceDenoiser(Cosmos3LoopDenoiser):
        """The stock denoiser, asked for the branches that this step and this rank need."""

        def __call__(self, components: Any, block_state: Any, i: int, t: Any) -> Any:
            scale, fields = block_state.guidance_scale, block_state.denoiser_input_fields
            guided = scale != 1.0 and (interval is None or interval[0] <= float(t) <= interval[1])
            if not guided or cfg.size > 1:
                block_state.guidance_scale = 1.0  # one branch only: the one called "cond"
            if guided and cfg.rank == 1:
                block_state.denoiser_input_fields = _unconditional(fields)
            components, block_state = super().__call__(components, block_state, i=i, t=t)
            block_state.guidance_scale, block_state.denoiser_input_fields = scale, fields
            if guided and cfg.size > 1:
                _combine(block_state, scale, cfg)
            on_step(i)
            return components, block_state

    return GuidanceDenoiser()


def _unconditional(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The denoiser's inputs with the unconditional branch where the conditional one is looked for."""
    kept = {name: value for name, value in fields.items() if not name.startswith(("cond_", "uncond_"))}
    swapped = {name.removeprefix("un"): value for name, value in fields.items() if name.startswith("uncond_")}
    return {**kept, **swapped}


def _combine(block_state: Any, scale: float, cfg: Group) -> None:
    """Guidance from the two ranks' velocities, by the same operations as in one process."""
    for name in _VELOCITIES:
        own = getattr(block_state, name)
        if own is not None:
            both = cfg.all_gather(own.unsqueeze(0), sizes=(1, 1), dim=0)
            conditional, unconditional = both.unbind(0)
            setattr(block_state, name, unconditional + scale * (conditional - unconditional))
