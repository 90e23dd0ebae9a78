"""A generation on one rank: the stock modular pipeline with this rank's part of the transformer in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.guidance import own_denoiser
from armillary.engine.media import CONDITION_FRAMES, Frames, Media, read_image, read_video, whole
from armillary.engine.request import CompleteRequest
from armillary.errors import CheckpointError, EngineError, Problem

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from armillary.parallel.mesh import Mesh


class NotFiniteError(EngineError):
    """The model computed NaN or infinity: what it made is nothing to deliver."""


def build_pipeline(folder: Path, request: CompleteRequest, transformer: Any, dtype: torch.dtype) -> Any:
    """The pipeline of a checkpoint folder around `transformer`, on its device, ready for `request`.

    What the request does not need (the sound tokenizer) is not loaded.

    Raises `CheckpointError` when a component cannot be loaded.
    """
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(str(folder))
    unused = {"transformer"} | (set() if request.sound else {"sound_tokenizer"})
    names = [name for name in pipeline.pretrained_component_names if name not in unused]
    pipeline.load_components(names=names, dtype=dtype)
    if missing := [name for name in names if not _is_whole(getattr(pipeline, name, None))]:
        raise CheckpointError(
            Problem(
                "component",
                f"{folder}: {', '.join(missing)} cannot be loaded",
                "the log above says why; download the folder again or mend its modular_model_index.json",
            )
        )
    set_schedule(pipeline, request)
    for name in names:
        component = getattr(pipeline, name)
        if hasattr(component, "to"):
            component.to(transformer.device)
    # not by pipeline.to, which would also move the weights that live elsewhere
    pipeline.update_components(transformer=transformer)
    pipeline.disable_safety_checker()
    return pipeline


def set_schedule(pipeline: Any, request: CompleteRequest) -> None:
    """Give the pipeline a new scheduler with the shift of `request`, as if none had run before."""
    if request.flow_shift is not None:
        scheduler = type(pipeline.scheduler).from_config(
            pipeline.scheduler.config, flow_shift=request.flow_shift
        )
        _start_at_the_start(scheduler)
        pipeline.update_components(scheduler=scheduler)


def _start_at_the_start(scheduler: Any) -> None:
    """Let this instance count its steps from 0. It would look for its first timestep among all of them, and
    in a schedule of so many steps that two round to the same timestep it finds the second."""
    set_timesteps = scheduler.set_timesteps

    def set_and_begin(*args: Any, **kwargs: Any) -> None:
        set_timesteps(*args, **kwargs)
        scheduler.set_begin_index(0)

    scheduler.set_timesteps = set_and_begin


def _is_whole(component: Any) -> bool:
    """Whether a component was loaded, with all of its weights: diffusers leaves those it lacks on meta."""
    parameters = getattr(component, "parameters", None)
    return component is not None and not (parameters and any(p.is_meta for p in parameters()))


def run_pipeline(
    pipeline: Any,
    request: CompleteRequest,
    mesh: Mesh,
    on_step: Callable[[int], None],
    *,
    on_latents: Callable[[torch.Tensor], None] | None = None,
    on_frames: Callable[[], None] = lambda: None,
    write: Callable[[Media], None] | None = None,
) -> tuple[Media | None, torch.Tensor]:
    """Run one generation. Returns what was made (on the first rank) and the final vision latents.

    With `write` the first rank gives it what is made instead, once, with frames that are decoded while they
    are asked for; all ranks decode until the last one, also where `write` fails. `on_latents` comes before.
    Where all ranks decode, `on_frames()` follows each latent frame on all of them, and may raise on all.

    Raises NotFiniteError for latents and frames with values that are not finite.
    """
    with own_denoiser(pipeline, request.guidance_interval, mesh.groups["cfg"], on_step):
        state = pipeline(**pipeline_arguments(request), output_type="latent")
    latents = state.get("latents")
    if on_latents:
        on_latents(latents)
    _refuse_not_finite(latents)
    chunks = _decoded(pipeline, latents, request, mesh, on_frames)
    media = _media(state, request, chunks) if mesh.is_first else None
    try:
        if media and write:
            write(media)
            media = None
        elif media:
            media = replace(media, frames=whole(media.frames))
    finally:
        for _ in chunks:  # what is left: of the ranks that do not write, all
            mesh.everyone.heartbeat.beat()
    return media, latents


def _refuse_not_finite(values: torch.Tensor) -> None:
    if not values.isfinite().all():
        why = "the model made values that are not finite (NaN)"
        raise NotFiniteError(Problem("not-finite", why, "check the checkpoint's weights and the dtype"))


def _decoded(
    pipeline: Any,
    latents: torch.Tensor,
    request: CompleteRequest,
    mesh: Mesh,
    on_frames: Callable[[], None],
) -> Iterator[NDArray[np.uint8]]:
    """Frames [t, H, W, 3] as the pipeline's decode step makes them, in turn; where the decode is not divided,
    on the first rank only."""
    import numpy as np

    from armillary.parallel.collectives import Group
    from armillary.parallel.vae import decoded_frames, divides_decode

    divided = divides_decode(
        mesh.everyone, request.width, request.height, request.num_frames, pipeline.vae_scale_factor_spatial
    )
    if not (divided or mesh.is_first):
        return
    dtype = pipeline.vae.dtype
    mean, inverse = (
        numbers.to(device=latents.device, dtype=dtype).view(1, -1, 1, 1, 1)
        for numbers in (pipeline._vae_latents_mean, pipeline._vae_latents_inv_std)
    )
    z = latents.to(dtype) / inverse + mean
    # closed at once, because the decoder is the stock one again only then
    with closing(decoded_frames(pipeline.vae, z, mesh.everyone if divided else Group("world"))) as decoded:
        for frames in decoded:
            mesh.everyone.heartbeat.beat()
            _refuse_not_finite(frames)
            if divided or mesh.everyone.size == 1:
                on_frames()
            if mesh.is_first:
                finish = pipeline.video_processor.postprocess_video
                pictures = finish(frames.to(latents.dtype), output_type="pil")[0]
                yield np.stack([np.asarray(picture) for picture in pictures])


def pipeline_arguments(request: CompleteRequest) -> dict[str, Any]:
    """What a request says to the stock pipeline.

    The noise comes from a generator of its own, seeded on the CPU: the same on every rank, for every
    number of ranks, and without touching the caller's random state.
    """
    import torch

    return {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "width": request.width,
        "height": request.height,
        "num_frames": request.num_frames,
        "fps": request.fps,
        "num_inference_steps": request.num_inference_steps,
        "guidance_scale": request.guidance_scale,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        **_conditions(request),
    }


def _conditions(request: CompleteRequest) -> Mapping[str, Any]:
    conditions: dict[str, Any] = {}
    if request.image is not None:
        conditions["image"] = read_image(request.image)
    if request.video is not None:
        conditions["video"] = read_video(request.video, max_frames=CONDITION_FRAMES)
    if request.sound:
        conditions["enable_sound"] = True
    if request.plain_prompt:
        conditions |= {"add_resolution_template": False, "add_duration_template": False}
    return conditions


def _media(state: Any, request: CompleteRequest, chunks: Iterator[NDArray[np.uint8]]) -> Media:
    sound = state.get("sound")
    return Media(
        frames=Frames((request.num_frames, request.height, request.width, 3), chunks),
        latents=state.get("latents").float().cpu().numpy(),
        fps=request.fps,
        sound=None if sound is None else sound.float().cpu().numpy(),
        sampling_rate=state.get("sampling_rate"),
    )
