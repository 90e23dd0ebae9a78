"""The pipeline's denoiser block, replaced by one that knows the guidance interval and the cfg axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    makers = _makers()
    try:
        for loop, denoiser in zip(loops, stock, strict=True):
            loop.sub_blocks["denoiser"] = makers[type(denoiser)](interval, cfg, on_step)
            loop.set_progress_bar_config(disable=True)  # every rank would show one
        yield
    finally:
        for loop, denoiser in zip(loops, stock, strict=True):
            loop.sub_blocks["denoiser"] = denoiser
            loop.set_progress_bar_config(disable=False)


def _denoising_loops(block: Any) -> Iterator[Any]:
    """Every loop block, however deep, that runs a stock denoiser."""
    sub_blocks = getattr(block, "sub_blocks", None) or {}
    if type(sub_blocks.get("denoiser")) in _makers():
        yield block
    for child in sub_blocks.values():
        yield from _denoising_loops(child)


def _makers() -> Mapping[type, Callable[..., Any]]:
    """Each stock denoiser, and what makes the one that takes its place."""
    from diffusers.modular_pipelines.cosmos.denoise import Cosmos3LoopDenoiser, Cosmos3TransferLoopDenoiser

    return {Cosmos3LoopDenoiser: _denoiser, Cosmos3TransferLoopDenoiser: _transfer_denoiser}


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


def _transfer_denoiser(
    interval: tuple[float, float] | None, cfg: Group, on_step: Callable[[int], None]
) -> Any:
    from diffusers.modular_pipelines.cosmos.denoise import Cosmos3TransferLoopDenoiser

    class TransferDenoiser(Cosmos3TransferLoopDenoiser):
        """The stock denoiser of transfer: up to three branches a step, guided by text and by controls.

        Over two ranks the stock block runs twice: first it is asked which branches it needs, then it combines
        what the ranks have computed.
        """

        def __call__(self, components: Any, block_state: Any, i: int, t: Any) -> Any:
            if interval is not None:
                block_state.guidance_interval = interval
            if cfg.size == 1:
                components, block_state = super().__call__(components, block_state, i=i, t=t)
            else:
                components, block_state = self._over_two_ranks(components, block_state, i, t)
            on_step(i)
            return components, block_state

        def _over_two_ranks(self, components: Any, block_state: Any, i: int, t: Any) -> Any:
            branches: list[Callable[[], Any]] = []

            def note(components: Any, static: Any, tokens: Any, *args: Any, **kwargs: Any) -> Any:
                stock = Cosmos3TransferLoopDenoiser._forward
                branches.append(lambda: stock(components, static, tokens, *args, **kwargs))
                return tokens[-1]  # of the shape of a velocity

            try:
                self._forward = note
                super().__call__(components, block_state, i=i, t=t)
                velocities = iter(_shared(branches, cfg))
                self._forward = lambda *args, **kwargs: next(velocities)
                return super().__call__(components, block_state, i=i, t=t)
            finally:
                del self._forward

    return TransferDenoiser()


def _shared(branches: Sequence[Callable[[], Any]], cfg: Group) -> list[Any]:
    """The velocities of all branches. The second rank computes the last: the unconditional one, or the one
    without controls; the others share their prompt. A single one is computed by both."""
    if len(branches) == 1:
        return [branches[0]()]
    import torch

    mine = branches[:-1] if cfg.rank == 0 else branches[-1:]
    own = torch.stack([branch() for branch in mine])
    return [*cfg.all_gather(own, sizes=(len(branches) - 1, 1), dim=0)]


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
