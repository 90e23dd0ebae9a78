"""The MP4 file: H.264 pictures and AAC sound, through PyAV."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from armillary.engine.media import Media


def write_mp4(media: Media, path: Path) -> None:
    """Write frames (H.264, 4:2:0, BT.709) and sound (AAC) to `path`; width and height are even.

    Raises what PyAV and the file system raise.
    """
    import av

    # The index in front lets a browser play the file while it is still coming.
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        encode_frame = _open_picture(container, media)
        encode_sound = _open_sound(container, media)
        for index, frame in enumerate(media.frames):
            encode_frame(frame)
            # Fed side by side: players read both streams together, and the muxer holds back neither.
            encode_sound((index + 1) / media.fps)
        encode_frame(None)
        encode_sound(None)


def _open_picture(container: Any, media: Media) -> Callable[[NDArray[np.uint8] | None], None]:
    """A function that encodes one frame [H, W, 3], and with None what the encoder holds back."""
    import av
    from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

    # With its macroblock tree, x264 makes other bytes of the same frames every few dozen times (seen at ten
    # sizes up to 832x480, with one thread as well). Without, the file follows from the frames bit by bit, and
    # is no larger for its quality.
    options = {"crf": "18", "mbtree": "0"}
    stream = container.add_stream("libx264", rate=_rate(media.fps), options=options)
    _, stream.height, stream.width, _ = media.frames.shape
    stream.pix_fmt = "yuv420p"
    # Said, not left to the player's guess, which goes by the size of the picture.
    stream.codec_context.colorspace = Colorspace.ITU709
    stream.codec_context.color_primaries = ColorPrimaries.BT709
    stream.codec_context.color_trc = ColorTrc.BT709
    stream.codec_context.color_range = ColorRange.MPEG

    def encode(frame: NDArray[np.uint8] | None) -> None:
        picture = None
        if frame is not None:
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
        container.mux(stream.encode(picture))

    return encode


def _rate(fps: float) -> Fraction:
    """Frames per second as the fraction that is meant: 23.976 is 24000/1001."""
    broadcast = Fraction(round(fps) * 1000, 1001)
    is_broadcast = fps != round(fps) and abs(fps - broadcast) < 1e-3
    return broadcast if is_broadcast else Fraction(fps).limit_denominator(1001)


def _open_sound(container: Any, media: Media) -> Callable[[float | None], None]:
    """A function that encodes the sound up to a time in seconds, and with None all that is left."""
    import av
    import numpy as np

    if media.sound is None or media.sampling_rate is None:
        return lambda until: None
    rate, layout = media.sampling_rate, {1: "mono", 2: "stereo"}[len(media.sound)]
    samples = np.ascontiguousarray(np.clip(media.sound, -1, 1), dtype=np.float32)
    stream = container.add_stream("aac", rate=rate, layout=layout, options={"b": "192k"})
    done = 0

    def encode(until: float | None) -> None:
        nonlocal done
        stop = samples.shape[1] if until is None else min(round(until * rate), samples.shape[1])
        if stop > done:
            chunk = av.AudioFrame.from_ndarray(samples[:, done:stop], format="fltp", layout=layout)
            chunk.sample_rate, chunk.pts, chunk.time_base = rate, done, Fraction(1, rate)
            done = stop
            container.mux(stream.encode(chunk))
        if until is None:
            container.mux(stream.encode(None))

    return encode
