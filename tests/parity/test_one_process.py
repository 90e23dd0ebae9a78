"""One process is bit-exact with diffusers: the model, and every mode of generation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniModularPipeline, Cosmos3OmniTransformer, UniPCMultistepScheduler
from forwards import run_forward
from generations import write_media
from PIL import Image

import armillary
from armillary.engine.generate import generate_on_rank
from armillary.engine.heartbeat import Heartbeat
from armillary.engine.media import Media, read_arrays, whole
from armillary.engine.prepare import prepare
from armillary.engine.worker import Rank
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import VARIANTS, TinyOptions, write_tiny
from armillary.parallel.load import load

ASKED: dict[str, Any] = {
    "prompt": "a red ball rolls down a hill",
    "negative_prompt": "blurry",
    "size": "48x80",
    "num_inference_steps": 4,
    "guidance_scale": 5.5,
    "guidance_interval": "none",
    "seed": 11,
}
MODES: dict[str, dict[str, Any]] = {
    "text-to-image": {"num_frames": 1},
    "text-to-video": {"num_frames": 9},
    "image-to-video": {"num_frames": 9, "image": "start.png"},
    "video-to-video": {"num_frames": 9, "video": "start.mp4"},
}
STORED = {"bfloat16-stored": TinyOptions(dtype="bfloat16"), "three-files": TinyOptions(files=3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints are written into it, and media to start from lie there."""
    folder = tmp_path_factory.mktemp("one")
    write_media(folder)
    return folder


def checkpoint(folder: Path, name: str) -> Path:
    target = folder / name
    options = {**VARIANTS, **STORED}[name]
    return target if target.exists() else write_tiny(target, replace(options, layers=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*VARIANTS, *STORED])
def test_the_model_is_diffusers_own(folder: Path, name: str, dtype: torch.dtype) -> None:
    source = checkpoint(folder, name)
    mine: Any = load(source, subfolder="transformer", dtype=dtype)
    stock = Cosmos3OmniTransformer.from_pretrained(source, subfolder="transformer", torch_dtype=dtype)
    assert type(mine) is Cosmos3OmniTransformer
    assert (mine.dtype, mine.training) == (stock.dtype, stock.training)
    for kind in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(mine, kind)()), dict(getattr(stock, kind)())
        assert list(ours) == list(theirs)
        for path, tensor in ours.items():
            assert tensor.dtype == theirs[path].dtype, path
            assert not tensor.is_meta
            assert torch.equal(tensor, theirs[path]), path
    assert {k: v for k, v in mine.config.items() if k != "_name_or_path"} == {
        k: v for k, v in stock.config.items() if k != "_name_or_path"
    }
    for prediction, expected in zip(run_forward(mine), run_forward(stock), strict=True):
        assert torch.equal(prediction, expected)


def stock_generation(source: Path, request: dict[str, Any], dtype: torch.dtype, **given: Any) -> Any:
    """What a diffusers user gets; the schedule's shift is the published one of the mode."""
    pipe = Cosmos3OmniModularPipeline.from_pretrained(source)
    pipe.load_components(dtype=dtype)
    shift = 3.0 if request["num_frames"] == 1 else 10.0
    scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config, flow_shift=shift)
    pipe.update_components(scheduler=scheduler)
    pipe.disable_safety_checker()
    width, height = map(int, request["size"].split("x"))
    names = ("prompt", "negative_prompt", "num_frames", "num_inference_steps", "guidance_scale")
    return pipe(
        **{name: request[name] for name in names},
        width=width,
        height=height,
        fps=24.0,
        generator=torch.Generator("cpu").manual_seed(request["seed"]),
        **given,
    )


def stock_media(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The request's inputs as a diffusers user reads them."""
    if "image" in request:
        return {"image": Image.open(folder / request["image"]).convert("RGB")}
    if "video" in request:
        with av.open(str(folder / request["video"])) as container:
            return {"video": [frame.to_image() for frame in container.decode(video=0)]}
    return {}


def request_of(folder: Path, mode: str, sound: bool) -> dict[str, Any]:
    fields = {**ASKED, **MODES[mode], "mode": mode, "sound": sound}
    return {k: str(folder / v) if k in ("image", "video") else v for k, v in fields.items()}


def assert_same_media(media: Media, stock: Any, sound: bool) -> None:
    frames = np.stack([np.asarray(frame) for frame in stock.get("videos")])
    made = whole(media.frames)
    assert made.dtype == np.uint8
    assert np.array_equal(made, frames)
    assert np.array_equal(media.latents, stock.get("latents").float().numpy())
    assert (media.sound is not None) == sound
    if media.sound is not None:
        assert np.array_equal(media.sound, stock.get("sound").float().numpy())
        assert media.sampling_rate == stock.get("sampling_rate")


CASES = [
    ("silu", "text-to-image", False, "float32"),
    ("silu-bias", "text-to-video", False, "float32"),
    ("silu", "image-to-video", False, "bfloat16"),
    ("silu", "video-to-video", False, "float32"),
    ("silu", "text-to-video", True, "bfloat16"),
    ("silu", "image-to-video", True, "float32"),
    ("relu2", "text-to-video", False, "float32"),
    ("relu2-bias", "image-to-video", False, "bfloat16"),
    ("vision-only", "text-to-image", False, "bfloat16"),
]


@pytest.mark.parametrize(("name", "mode", "sound", "dtype"), CASES)
def test_a_generation_is_the_stock_pipelines(
    folder: Path, tmp_path: Path, name: str, mode: str, sound: bool, dtype: str
) -> None:
    source, request = checkpoint(folder, name), {"flow_shift": 10.0, **request_of(folder, mode, sound)}
    if mode == "text-to-image":
        request["flow_shift"] = 3.0
    job = prepare(request, source, Layout(), dtype=dtype)
    alone = Rank(0, 0, 1, torch.device("cpu"), Heartbeat.unshared())
    generate_on_rank(job.payload(tmp_path / "out.npz"), alone)
    given = {**stock_media(folder, request), **({"enable_sound": True} if sound else {})}
    stock = stock_generation(source, request, getattr(torch, dtype), **given)
    assert_same_media(read_arrays(tmp_path / "out.npz", 24.0), stock, sound)


def test_the_public_call_gives_the_same_frames_latents_and_sound(folder: Path) -> None:
    source, request = checkpoint(folder, "silu"), request_of(folder, "video-to-video", sound=True)
    result = armillary.generate(request, source)
    given = {**stock_media(folder, request), "enable_sound": True}
    stock = stock_generation(source, request, torch.float32, **given)
    assert result.media is not None
    assert_same_media(result.media, stock, sound=True)
    assert (result.seed, result.dtype) == (11, "float32")
