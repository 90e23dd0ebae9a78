"""A generation on one rank: the stock modular pipeline with this rank's part of the transformer in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.guidance import own_denoiser
from armillary.engine.media import CONDITION_FRAMES, Media, read_image, read_video
from armillary.engine.request import CompleteRequest
from armillary.errors import CheckpointError, Problem

if TYPE_CHECKING:
    import torch

    from armillary.parallel.mesh import Mesh


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
    pipeline: Any, request: CompleteRequest, mesh: Mesh, on_step: Callable[[int], None]
) -> tuple[Media | None, torch.Tensor]:
    """Run one generation. Returns what was made (on the first rank) and the final vision latents."""
    from armillary.parallel.vae import divided_decode, divides_decode

    divided = divides_decode(
        mesh.everyone, request.width, request.height, request.num_frames, pipeline.vae_scale_factor_spatial
    )
    with (
        divided_decode(pipeline.vae, mesh.everyone) if divided else nullcontext(),
        own_denoiser(pipeline, request.guidance_interval, mesh.groups["cfg"], on_step),
    ):
        state = pipeline(
            **pipeline_arguments(request),
            output_type="pil" if mesh.is_first else "pt" if divided else "latent",
        )
    latents = state.get("latents")
    return (_media(state, request) if mesh.is_first else None), latents


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


def _media(state: Any, request: CompleteRequest) -> Media:
    import numpy as np

    sound = state.get("sound")
    return Media(
        frames=np.stack([np.asarray(frame) for frame in state.get("videos")]),
        latents=state.get("latents").float().cpu().numpy(),
        fps=request.fps,
        sound=None if sound is None else sound.float().cpu().numpy(),
        sampling_rate=state.get("sampling_rate"),
    )
