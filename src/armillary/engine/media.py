"""The files of a generation: conditioning images and videos in, the result out.

Pillow, PyAV and numpy are imported where they are used, so that the checks before a generation stay quick.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from armillary.engine.mp4 import write_mp4
from armillary.errors import EngineError, Problem, RequestError, list_choices, reason_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

CONDITION_FRAMES = 5
"""Of a clip to continue: latent frames 0 and 1, of which the second stands for four pictures."""
MAX_PIXELS = 64 * 1024 * 1024
"""Of one conditioning picture: some kilobytes of file can unpack into all the memory there is."""


class WriteError(EngineError):
    """A result could not be encoded or stored, though it could be made."""


class Frames:
    """Frames that are made while they are asked for: once, in order, with few in memory at a time."""

    def __init__(self, shape: tuple[int, int, int, int], chunks: Iterable[NDArray[np.uint8]]) -> None:
        self.shape = shape
        """(T, H, W, 3)"""
        self.error: Exception | None = None
        """What kept them from being made."""
        self._chunks = chunks

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        try:
            for chunk in self._chunks:
                yield from chunk
        except Exception as error:
            self.error = error
            raise

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Media:
    """What a generation made."""

    frames: NDArray[np.uint8] | Frames
    """[T, H, W, 3], RGB."""
    latents: NDArray[np.float32]
    """The final latents, before the VAE."""
    fps: float
    """Frames per second."""
    sound: NDArray[np.float32] | None = None
    """[channels, samples], of -1 to 1."""
    sampling_rate: int | None = None
    """Samples per second of `sound`; None without it."""


# ---------------------------------------------------------------------------------------------- reading

_KINDS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"ftypheic", "HEIC"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyp", "MP4"),
    (4, b"moov", "MP4"),
    (4, b"mdat", "MP4"),
    (4, b"wide", "MP4"),
    (0, b"\x1aE\xdf\xa3", "Matroska"),
    (8, b"AVI ", "AVI"),
    (8, b"WAVE", "WAV"),
    (0, b"%PDF", "PDF"),
    (0, b"PK\x03\x04", "ZIP"),
)
"""Offset, bytes there, and what such a file holds."""

_IMAGE_FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "WebP": "WEBP"}
"""Kinds of image that are read, by Pillow's name for the format."""
_VIDEO_FORMATS = {"MP4": "mp4", "Matroska": "matroska", "AVI": "avi"}
"""Kinds of video that are read, by FFmpeg's name for the demuxer. FFmpeg is not left to guess: what it took
for a playlist would have it open other files and addresses."""
_IMAGE_FIX = "give a PNG, JPEG or WebP file"
_VIDEO_FIX = "give an MP4 (or MOV), WebM, Matroska or AVI file"


def media_kind(path: str | os.PathLike[str]) -> Literal["image", "video"] | None:
    """Whether a file holds a picture or a video of a kind that is read, by its first bytes."""
    with open(path, "rb") as file:
        head = file.read(32)
    found = next((name for at, magic, name in _KINDS if head[at:].startswith(magic)), "")
    return "image" if found in _IMAGE_FORMATS else "video" if found in _VIDEO_FORMATS else None


def read_image(path: str | os.PathLike[str]) -> Image:
    """The picture in a PNG, JPEG or WebP file, RGB, turned as its EXIF orientation says.

    Raises RequestError that names the file, what was found and what is accepted.
    """
    import PIL.Image
    import PIL.ImageOps

    path = Path(path)
    kind = _kind(path, "image", _IMAGE_FORMATS, _IMAGE_FIX)
    try:
        with PIL.Image.open(path, formats=(_IMAGE_FORMATS[kind],)) as image:
            _check_pixels(path, image.width, image.height)
            return _eight_bits(PIL.ImageOps.exif_transpose(image)).convert("RGB")
    except RequestError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file makes them stumble over
        raise _broken(path, kind, error, _IMAGE_FIX) from None


def _eight_bits(image: Image) -> Image:
    """16-bit grey is scaled; Pillow's own conversion would clip everything above 255 to white."""
    import numpy as np
    import PIL.Image

    if not image.mode.startswith("I;16"):
        return image
    return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def read_video(path: str | os.PathLike[str], max_frames: int) -> list[Image]:
    """The first frames, `max_frames` at most and one at least, RGB, turned as the container says.

    Raises RequestError that names the file, what was found and what is accepted.
    """
    import av

    path = Path(path)
    kind = _kind(path, "video", _VIDEO_FORMATS, _VIDEO_FIX)
    frames: list[Image] = []
    try:
        with path.open("rb") as file, av.open(file, format=_VIDEO_FORMATS[kind]) as container:
            for frame in _decode(container, path):
                frames.append(frame.to_image().rotate(frame.rotation, expand=True))
                if len(frames) == max_frames:
                    break
    except (av.FFmpegError, OSError, ValueError) as error:
        raise _broken(path, kind, error, _VIDEO_FIX) from None
    if not frames:
        raise RequestError(Problem("media-format", f"{path} is {kind} without a video frame", _VIDEO_FIX))
    return frames


def _decode(container: Any, path: Path) -> Iterator[Any]:
    if not container.streams.video:
        return
    stream = container.streams.video[0]
    # The header is believed first; what a frame turns out to be is checked by the decoder.
    _check_pixels(path, stream.codec_context.width, stream.codec_context.height)
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    yield from container.decode(stream)


def _kind(path: Path, wanted: str, accepted: dict[str, str], fix: str) -> str:
    """What the file holds by its first bytes, which must be among `accepted`."""
    problem = None
    try:
        if not path.exists():
            problem = Problem("media-missing", f"{wanted} {path} does not exist", "check the path")
        elif not path.is_file():  # a pipe or a device could be waited for without end
            problem = Problem("media-file", f"{wanted} {path} is not a file", fix)
        else:
            with path.open("rb") as file:
                head = file.read(32)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = reason_of(error)
        problem = Problem("media-file", f"{wanted} {path} cannot be read ({reason})", "check the path")
    if problem:
        raise RequestError(problem)
    kind = next((name for at, magic, name in _KINDS if head[at:].startswith(magic)), None)
    if kind is None or kind not in accepted:
        found = kind or ("an empty file" if not head else f"of unknown kind (it begins with {head[:8]!r})")
        raise RequestError(Problem("media-format", f"{wanted} {path} is {found}", fix))
    return kind


def _check_pixels(path: Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        message = f"{path} is {width}x{height}: over {MAX_PIXELS // 2**20} megapixels are not decoded"
        raise RequestError(Problem("media-size", message, "give a smaller one"))


def _broken(path: Path, kind: str, error: Exception, fix: str) -> RequestError:
    reason = reason_of(error)
    return RequestError(Problem("media-format", f"{path} is {kind} that cannot be decoded ({reason})", fix))


class _HasInputs(Protocol):
    @property
    def image(self) -> Path | None: ...
    @property
    def video(self) -> Path | None: ...


def probe_media(request: _HasInputs) -> list[Problem]:
    """What is wrong with the request's image and video, found by decoding the first frame of each."""
    problems: list[Problem] = []
    reads: tuple[tuple[Path | None, Callable[[Path], object]], ...] = (
        (request.image, read_image),
        (request.video, lambda path: read_video(path, 1)),
    )
    for path, read in reads:
        try:
            if path is not None:
                read(path)
        except RequestError as error:
            problems += error.problems
    return problems


# ---------------------------------------------------------------------------------------------- writing


def check_output(path: str | os.PathLike[str], num_frames: int | None = None) -> list[Problem]:
    """What keeps a result of `num_frames` frames from being written to `path`, found before it is made.

    The folder is tried by making a file in it: permission bits say little about read-only mounts, or to root.
    """
    path = Path(path)
    problems = _suffix_problems(path, num_frames)
    try:
        if path.is_dir():
            problems.append(Problem("output-folder", f"output {path} is a folder", "give the path of a file"))
        elif path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            problems.append(
                Problem("output-file", f"output {path} exists and cannot be written", "give another path")
            )
        else:
            part = _part_of(path)
            part.touch(exist_ok=False)
            part.unlink()
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        fix = "give a path in an existing folder that you may write to"
        problems.append(Problem("output-folder", f"output {path} cannot be written ({reason})", fix))
    return problems


def _suffix_problems(path: Path, num_frames: int | None) -> list[Problem]:
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        fix = f"end it in {list_choices([*_WRITERS])}"
        return [Problem("output-suffix", f"output {path} has no known ending", fix)]
    if _WRITERS[suffix] is _write_image and num_frames not in (None, 1):
        message = f"output {path} is a picture, and the request makes {num_frames} frames"
        return [Problem("output-suffix", message, "write .mp4 or .npz, or ask for one frame")]
    return []


def write_media(media: Media, path: str | os.PathLike[str]) -> None:
    """Write `media` in the format that the ending of `path` names, whole or not at all.

    - `.mp4`: H.264, with sound as AAC at its sampling rate.
    - `.png`, `.jpg`, `.jpeg`: the one frame.
    - `.npz`: without loss. `frames` uint8 [T, H, W, 3] and `latents` float32; where there is sound, also
      `sound` float32 [channels, samples] and `sampling_rate`.

    Raises RequestError for an ending that does not fit, WriteError where writing fails, and what the frames
    raise while they are made as it is.
    """
    path = Path(path)
    if problems := _suffix_problems(path, len(media.frames)):
        raise RequestError(problems)
    part = _part_of(path)
    try:
        _WRITERS[path.suffix.lower()](media, part)
        part.replace(path)
    except Exception as error:  # encoders, the disk, the network under it
        if isinstance(media.frames, Frames) and media.frames.error:
            raise media.frames.error from None  # there was nothing to write
        reason = reason_of(error)
        raise WriteError(Problem("output-write", f"{path} could not be written ({reason})")) from error
    finally:
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    """A new hidden name beside `path`: on the same file system, so that it can be renamed into place."""
    return path.absolute().with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def _write_image(media: Media, part: Path) -> None:
    import PIL.Image

    # JPEG with chroma at full size: one picture has the room, and edges keep their colour. PNG ignores both.
    PIL.Image.fromarray(next(iter(media.frames))).save(part, quality=95, subsampling=0)


def _write_arrays(media: Media, part: Path) -> None:
    import numpy as np

    arrays: dict[str, Any] = {"frames": whole(media.frames), "latents": media.latents}
    if media.sound is not None:
        arrays |= {"sound": media.sound, "sampling_rate": np.int64(media.sampling_rate or 0)}
    with part.open("wb") as file:  # by name, numpy would append its own ending to another spelling of it
        np.savez(file, **arrays)


def whole(frames: NDArray[np.uint8] | Frames) -> NDArray[np.uint8]:
    """All frames in one array."""
    import numpy as np

    if not isinstance(frames, Frames):
        return frames
    array = np.empty(frames.shape, dtype=np.uint8)
    for number, frame in enumerate(frames):
        array[number] = frame
    return array


def read_arrays(path: str | os.PathLike[str], fps: float) -> Media:
    """The `Media` that was written to an `.npz`, which does not hold its frames per second."""
    import numpy as np

    with np.load(path) as arrays:
        return Media(
            frames=arrays["frames"],
            latents=arrays["latents"],
            fps=fps,
            sound=arrays.get("sound"),
            sampling_rate=int(arrays["sampling_rate"]) if "sampling_rate" in arrays else None,
        )


_WRITERS: dict[str, Callable[[Media, Path], None]] = {
    ".mp4": write_mp4,
    ".npz": _write_arrays,
    ".png": _write_image,
    ".jpg": _write_image,
    ".jpeg": _write_image,
}
