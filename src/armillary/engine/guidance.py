"""The denoiser block of the modular pipeline, replaced by one that knows the guidance interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_denoiser(
    pipeline: Any, interval: tuple[float, float] | None, on_step: Callable[[int], None]
) -> Iterator[None]:
    """While inside, guidance acts only at timesteps in `interval`, and `on_step(i)` follows step i.

    The block stands in several places of the pipeline's blocks (vision, vision_sound, ...); each is
    replaced on this pipeline's own instance and put back afterwards. The library stays as it is.
    """
    loops = list(_denoising_loops(pipeline._blocks))
    stock = [loop.sub_blocks["denoiser"] for loop in loops]
    try:
        for loop in loops:
            loop.sub_blocks["denoiser"] = _denoiser(interval, on_step)
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


def _denoiser(interval: tuple[float, float] | None, on_step: Callable[[int], None]) -> Any:
    from diffusers.modular_pipelines.cosmos.denoise import Cosmos3LoopDenoiser

    class IntervalDenoiser(Cosmos3LoopDenoiser):
        """The stock denoiser, with guidance off outside the interval."""

        def __call__(self, components: Any, block_state: Any, i: int, t: Any) -> Any:
            scale = block_state.guidance_scale
            if interval is not None and not interval[0] <= float(t) <= interval[1]:
                block_state.guidance_scale = 1.0  # the unconditional branch is then not computed
            components, block_state = super().__call__(components, block_state, i=i, t=t)
            block_state.guidance_scale = scale
            on_step(i)
            return components, block_state

    return IntervalDenoiser()
