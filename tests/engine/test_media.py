"""Media files, written and read back for real."""

import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from armillary.engine.media import (
    Media,
    check_output,
    probe_media,
    read_image,
    read_video,
    whole,
    write_media,
)
from armillary.engine.request import GenerationRequest
from armillary.errors import EngineError, RequestError

RATE = 48_000


def moving_stripes(frames: int = 9, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """Saturated colours that move, so that a wrong colour matrix, order or size shows."""
    t, y, x = np.mgrid[0:frames, 0:height, 0:width]
    channels = (x / 20 + t / 9, y / 15 - t / 7, (x + y) / 25 + t / 8)
    return np.asarray(127.5 + 120 * np.sin(np.stack(channels, axis=-1)), dtype=np.uint8)


def tone(seconds: float) -> NDArray[np.float32]:
    time = np.arange(round(seconds * RATE)) / RATE
    return 0.5 * np.sin(2 * np.pi * np.stack([440 * time, 880 * time])).astype(np.float32)


def media(frames: NDArray[np.uint8] | None = None, **fields: Any) -> Media:
    latents = np.linspace(-3, 3, 48, dtype=np.float32).reshape(1, 48, 1, 1, 1)
    shown = moving_stripes() if frames is None else frames
    return Media(frames=shown, latents=latents, **{"fps": 24.0, **fields})


def psnr(one: Any, other: Any) -> float:
    return float(10 * np.log10(255**2 / np.mean((np.asarray(one, float) - np.asarray(other, float)) ** 2)))


# written and read back


@pytest.mark.parametrize(
    ("fps", "rate"), [(24.0, 24), (23.976, 24000 / 1001), (29.97, 30000 / 1001), (12.5, 12.5)]
)
def test_an_mp4_has_the_frames_the_size_and_the_rate(tmp_path: Path, fps: float, rate: float) -> None:
    write_media(media(fps=fps), tmp_path / "out.mp4")
    with av.open(tmp_path / "out.mp4") as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.frames, stream.width, stream.height) == (9, 96, 64)
        assert float(stream.average_rate) == pytest.approx(rate)


def test_an_mp4_looks_like_what_was_written(tmp_path: Path) -> None:
    write_media(media(), tmp_path / "out.mp4")
    frames = read_video(tmp_path / "out.mp4", max_frames=100)
    assert len(frames) == 9
    assert psnr(np.stack([np.asarray(frame) for frame in frames]), moving_stripes()) > 36


@pytest.mark.parametrize(("height", "width"), [(64, 64), (80, 272)])
def test_the_same_frames_and_sound_give_the_same_file_bit_by_bit(
    tmp_path: Path, height: int, width: int
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (5, height // 8, width // 8, 3), dtype=np.uint8)
    frames = noise.repeat(8, axis=1).repeat(8, axis=2) // 2 + moving_stripes(5, height, width) // 2
    files = set()
    for _ in range(60):
        write_media(media(frames, sound=tone(5 / 24), sampling_rate=RATE), tmp_path / "out.mp4")
        files.add((tmp_path / "out.mp4").read_bytes())
    assert len(files) == 1


def test_an_mp4_carries_its_sound_at_its_rate_and_length(tmp_path: Path) -> None:
    sound = tone(49 / 24)
    write_media(media(moving_stripes(49), sound=sound, sampling_rate=RATE), tmp_path / "out.mp4")
    with av.open(tmp_path / "out.mp4") as container:
        stream = container.streams.audio[0]
        assert (stream.codec_context.name, stream.rate, stream.layout.name) == ("aac", RATE, "stereo")
        heard = np.concatenate([frame.to_ndarray() for frame in container.decode(stream)], axis=1)
    assert abs(heard.shape[1] - sound.shape[1]) <= 2048  # AAC works in blocks of 1024
    inner = slice(4096, sound.shape[1] - 4096)
    assert np.corrcoef(heard[0, inner], sound[0, inner])[0, 1] > 0.99
    assert np.corrcoef(heard[1, inner], sound[1, inner])[0, 1] > 0.99


def test_a_single_frame_can_be_an_mp4(tmp_path: Path) -> None:
    write_media(media(moving_stripes(1)), tmp_path / "out.mp4")
    assert len(read_video(tmp_path / "out.mp4", max_frames=5)) == 1


def test_a_png_is_exact(tmp_path: Path) -> None:
    write_media(media(moving_stripes(1)), tmp_path / "out.png")
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "out.png")), moving_stripes(1)[0])


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_a_jpeg_is_close(tmp_path: Path, suffix: str) -> None:
    write_media(media(moving_stripes(1)), tmp_path / f"out{suffix}")
    assert psnr(read_image(tmp_path / f"out{suffix}"), moving_stripes(1)[0]) > 38


def test_an_npz_is_exact_and_has_sound_only_where_there_is_some(tmp_path: Path) -> None:
    loud = media(sound=tone(0.1), sampling_rate=RATE)
    write_media(loud, tmp_path / "loud.npz")
    write_media(media(), tmp_path / "mute.npz")
    with np.load(tmp_path / "loud.npz") as arrays:
        assert {name: array.dtype.name for name, array in arrays.items()} == {
            "frames": "uint8",
            "latents": "float32",
            "sound": "float32",
            "sampling_rate": "int64",
        }
        for name in ("frames", "latents", "sound", "sampling_rate"):
            np.testing.assert_array_equal(arrays[name], getattr(loud, name))
    with np.load(tmp_path / "mute.npz") as arrays:
        assert sorted(arrays) == ["frames", "latents"]


def test_a_result_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "out.png").write_text("old")
    write_media(media(moving_stripes(1)), tmp_path / "out.png")
    assert os.listdir(tmp_path) == ["out.png"]
    assert read_image(tmp_path / "out.png").size == (96, 64)


def test_a_failed_write_keeps_the_older_result_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_text("old")
    odd = media(moving_stripes(9))
    with pytest.raises(EngineError, match="could not be written"):
        write_media(
            Media(frames=whole(odd.frames)[:, :-1, :-1], latents=odd.latents, fps=24), tmp_path / "out.mp4"
        )
    assert os.listdir(tmp_path) == ["out.mp4"]
    assert (tmp_path / "out.mp4").read_text() == "old"


def test_many_frames_are_not_written_as_a_picture(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a picture, and the request makes 9 frames"):
        write_media(media(), tmp_path / "out.png")


# inputs


def test_an_image_is_turned_as_its_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    picture = Image.fromarray(moving_stripes()[0])
    picture.save(tmp_path / "phone.jpg", exif=exif, quality=95, subsampling=0)
    assert psnr(read_image(tmp_path / "phone.jpg"), picture.transpose(Image.Transpose.ROTATE_270)) > 30


def test_a_video_is_turned_as_its_container_says(tmp_path: Path) -> None:
    frames = moving_stripes()
    with av.open(tmp_path / "phone.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        stream.set_display_rotation(90)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    first = read_video(tmp_path / "phone.mp4", max_frames=2)[0]
    assert psnr(first, np.rot90(frames[0])) > 25


def test_a_video_is_read_no_further_than_asked(tmp_path: Path) -> None:
    write_media(media(), tmp_path / "clip.mp4")
    frames = read_video(tmp_path / "clip.mp4", max_frames=5)
    assert [(frame.mode, frame.size) for frame in frames] == [("RGB", (96, 64))] * 5


@pytest.mark.parametrize(("mode", "expected"), [("RGBA", 3), ("L", 1), ("P", 3), ("1", 1)])
def test_an_image_of_any_mode_becomes_rgb(tmp_path: Path, mode: str, expected: int) -> None:
    Image.fromarray(moving_stripes()[0]).convert(mode).save(tmp_path / "a.png")
    pixels = np.asarray(read_image(tmp_path / "a.png"))
    assert pixels.shape == (64, 96, 3)
    assert (pixels == pixels[..., :1]).all() == (expected == 1)


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.arange(0, 2**16, 64, dtype=np.uint16).reshape(32, 32)).save(tmp_path / "deep.png")
    assert len(np.unique(np.asarray(read_image(tmp_path / "deep.png")))) == 256


def test_a_picture_with_too_many_pixels_is_not_unpacked(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    with pytest.raises(RequestError, match="9000x9000: over 64 megapixels are not decoded"):
        read_image(tmp_path / "bomb.png")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that are not what their names say."""
    write_media(media(moving_stripes(1)), tmp_path / "whole.png")
    write_media(media(), tmp_path / "whole.mp4")
    for name in ("whole.png", "whole.mp4"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / f"cut{Path(name).suffix}").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.png").write_text("hello world")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXTINF:1\nwhole.mp4\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.gif")
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path


@pytest.mark.parametrize(
    ("field", "name", "found"),
    [
        ("image", "none.png", "does not exist"),
        ("image", ".", "is not a file"),
        ("image", "pipe.png", "is not a file"),
        ("image", "text.png", "is of unknown kind (it begins with b'hello wo')"),
        ("image", "a.gif", "is GIF; give a PNG, JPEG or WebP file"),
        ("image", "whole.mp4", "is MP4; give a PNG, JPEG or WebP file"),
        ("image", "cut.png", "is PNG that cannot be decoded"),
        ("video", "whole.png", "is PNG; give an MP4 (or MOV), WebM, Matroska or AVI file"),
        ("video", "empty.mp4", "is an empty file"),
        ("video", "list.mp4", "is of unknown kind (it begins with b'#EXTM3U"),
        ("video", "cut.mp4", "is MP4 that cannot be decoded"),
        ("video", "x" * 300, "cannot be read (File name too long)"),
    ],
)
def test_a_bad_input_is_named_with_what_it_is(files: Path, field: str, name: str, found: str) -> None:
    request = GenerationRequest.parse({"prompt": "a robot", field: files / name})
    (problem,) = probe_media(request)
    assert str(files / name) in str(problem)
    assert found in str(problem)


def test_good_inputs_have_no_problem(files: Path) -> None:
    request = GenerationRequest(prompt="a robot", image=files / "whole.png", video=files / "whole.mp4")
    assert probe_media(request) == []


def test_a_file_with_sound_alone_is_no_video(tmp_path: Path) -> None:
    with av.open(tmp_path / "sound.mp4", "w") as container:
        stream = container.add_stream("aac", rate=RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(tone(0.1), format="fltp", layout="stereo")
        frame.sample_rate = RATE
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(RequestError, match="is MP4 without a video frame"):
        read_video(tmp_path / "sound.mp4", max_frames=1)


# the output path


@pytest.mark.parametrize("name", ["out.mp4", "out.npz", "out.png", "out.JPEG"])
def test_a_writable_output_passes_and_is_not_made(tmp_path: Path, name: str) -> None:
    assert check_output(tmp_path / name, num_frames=1) == []
    assert os.listdir(tmp_path) == []


def test_an_existing_output_is_left_as_it_is_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_text("old")
    assert check_output(tmp_path / "out.mp4", num_frames=189) == []
    assert (tmp_path / "out.mp4").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("out.gif", "has no known ending; end it in .mp4, .npz, .png, .jpg or .jpeg"),
        ("out", "has no known ending"),
        ("out.png", "is a picture, and the request makes 5 frames"),
        ("missing/out.mp4", "cannot be written (No such file or directory)"),
        ("folder.mp4", "is a folder"),
        ("pipe.mp4", "exists and cannot be written"),
        (f"{'x' * 300}.mp4", "cannot be written (File name too long)"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_before(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    (problem,) = check_output(tmp_path / name, num_frames=5)
    assert found in str(problem)


def test_a_folder_that_takes_no_files_is_found_even_by_root() -> None:
    (problem,) = check_output("/proc/out.mp4")
    assert "/proc/out.mp4 cannot be written" in str(problem)
