"""Frames go to the encoder as they are decoded: the same bytes, a few in memory at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from armillary.engine.abilities import abilities
from armillary.engine.media import Frames, Media, read_video, whole, write_media
from armillary.engine.pipeline import build_pipeline, pipeline_arguments, run_pipeline
from armillary.engine.request import GenerationRequest, complete
from armillary.errors import EngineError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.mesh import build_mesh

REQUEST = {"prompt": "tea", "size": "48x80", "num_frames": 9, "num_inference_steps": 2, "sound": True}


class Generation:
    """One request on one tiny pipeline, and how often its decoder was called."""

    def __init__(self, folder: Path) -> None:
        self.mesh = build_mesh(Layout())
        self.request = complete(GenerationRequest.parse(REQUEST), abilities(folder))
        transformer: Any = load(folder, subfolder="transformer", prefill=True, progress=False)
        self.pipeline = build_pipeline(folder, self.request, transformer, torch.float32)
        self.decoded = 0
        self.pipeline.vae.decoder.register_forward_hook(lambda *_: setattr(self, "decoded", self.decoded + 1))

    def run(self, **how: Any) -> Media | None:
        self.decoded = 0
        return run_pipeline(self.pipeline, self.request, self.mesh, on_step=lambda i: None, **how)[0]


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    return Generation(write_tiny(tmp_path_factory.mktemp("frames") / "tiny", TinyOptions(layers=1)))


def test_the_frames_are_those_of_the_stock_pipeline(generation: Generation) -> None:
    stock = generation.pipeline(**pipeline_arguments(generation.request), output_type="pil").get("videos")
    media = generation.run()
    assert media is not None
    assert np.array_equal(whole(media.frames), np.stack([np.asarray(frame) for frame in stock]))


def test_a_streamed_file_holds_what_one_written_in_the_end_does(
    generation: Generation, tmp_path: Path
) -> None:
    media = generation.run()
    assert media is not None
    assert media.sound is not None
    write_media(media, tmp_path / "end.npz")
    assert generation.run(write=lambda media: write_media(media, tmp_path / "streamed.npz")) is None
    assert (tmp_path / "streamed.npz").read_bytes() == (tmp_path / "end.npz").read_bytes()


def test_a_streamed_video_has_all_frames(generation: Generation, tmp_path: Path) -> None:
    generation.run(write=lambda media: write_media(media, tmp_path / "out.mp4"))
    frames = read_video(tmp_path / "out.mp4", max_frames=99)
    assert [frame.size for frame in frames] == [(48, 80)] * 9


def test_no_frame_is_decoded_before_it_is_asked_for(generation: Generation) -> None:
    seen: list[int] = []

    def write(media: Media) -> None:
        assert isinstance(media.frames, Frames)
        seen.extend(generation.decoded for _ in media.frames)

    generation.run(write=write)
    assert seen == [1, *[2] * 4, *[3] * 4]


def test_a_writer_that_fails_is_told_after_all_frames_are_decoded(generation: Generation) -> None:
    def write(media: Media) -> None:
        raise EngineError("the disk is full")

    with pytest.raises(EngineError, match="the disk is full"):
        generation.run(write=write)
    assert generation.decoded == 3


def test_what_keeps_frames_from_being_decoded_is_no_fault_of_the_file(
    generation: Generation, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no memory to decode")

    with (
        generation.pipeline.vae.decoder.register_forward_pre_hook(fail),
        pytest.raises(MemoryError, match="no memory to decode"),
    ):
        generation.run(write=lambda media: write_media(media, tmp_path / "out.mp4"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_may_be_ended_between_latent_frames(generation: Generation) -> None:
    def stop() -> None:
        if generation.decoded == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generation.run(on_frames=stop)
    assert generation.decoded == 2
    assert generation.run() is not None


@pytest.mark.parametrize("component", ["transformer", "vae"])
def test_a_result_that_is_not_finite_is_not_delivered(generation: Generation, component: str) -> None:
    *_, weight = getattr(generation.pipeline, component).parameters()
    if component == "vae":
        weight = generation.pipeline.vae.post_quant_conv.weight
    stored = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    try:
        with pytest.raises(EngineError, match=r"values that are not finite .* check the checkpoint's"):
            generation.run()
    finally:
        with torch.no_grad():
            weight.copy_(stored)


def test_latents_are_compared_before_a_frame_is_decoded(generation: Generation) -> None:
    counts: list[int] = []
    generation.run(on_latents=lambda latents: counts.append(generation.decoded))
    assert counts == [0]
