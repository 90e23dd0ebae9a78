"""A measure instead of a feeling: what shape, colour and motion does a clip show?

Plain image analysis without anything learned, so that it cannot favour the model that it judges. It looks
at the pixels that stand out from the ground: their colour, how much of their bounding box they fill, and
where their centre goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toy.clips import COLOURS, GROUND, MOTIONS, Frames

_STANDS_OUT = 0.5  # of the clip's strongest contrast: where an edge that is smoothed or blurred lies
_LEAST_CONTRAST = 40.0  # of 255; less is ground with noise, nothing is seen
_LEAST_PIXELS = 30
_LEAST_TRAVEL = 5.0  # pixels from the first frame to the last; less is standing still
# areas over bounding boxes: triangle 1/2, circle pi/4, square 1; the limits lie between them
_TRIANGLE_BELOW, _SQUARE_ABOVE = 0.64, 0.89


class Seen(NamedTuple):
    """What a clip shows; "none" where nothing stands out from the ground."""

    shape: str
    colour: str
    motion: str


class Scores(NamedTuple):
    """Shares of clips, 0 to 1, whose label was seen; `all` counts clips in which every label was."""

    shape: float
    colour: float
    motion: float
    all: float


NOTHING = Seen("none", "none", "none")


def see(frames: Frames) -> Seen:
    """Shape, colour and motion of one clip, uint8 [time, height, width, 3]."""
    pixels = frames.astype(np.float32)
    contrast = np.abs(pixels - np.array(GROUND)).max(axis=-1)
    peak = float(np.percentile(contrast, 98))
    mask = contrast > _STANDS_OUT * peak
    mask = np.stack([_without_specks(frame) for frame in mask])
    if peak < _LEAST_CONTRAST or mask.sum(axis=(1, 2)).min() < _LEAST_PIXELS:
        return NOTHING
    return Seen(_shape(mask), _colour(pixels[mask & (contrast > 0.8 * peak)]), _motion(mask))


def score(clips: Iterable[Frames], labels: Sequence[tuple[str, str, str]]) -> Scores:
    """How often the labels (shape, colour, motion) are what `see` sees."""
    right = np.array(
        [[a == b for a, b in zip(see(c), want, strict=True)] for c, want in zip(clips, labels, strict=True)]
    )
    shape, colour, motion = (float(share) for share in right.mean(axis=0))
    return Scores(shape, colour, motion, float(right.all(axis=1).mean()))


def _without_specks(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask without specks: rows and columns that hold next to nothing of it are cleared."""
    rows, columns = mask.sum(axis=1) >= 2, mask.sum(axis=0) >= 2
    kept: NDArray[np.bool_] = mask & rows[:, None] & columns[None, :]
    return kept


def _colour(foreground: NDArray[np.float32]) -> str:
    mean = foreground.mean(axis=0)
    return min(COLOURS, key=lambda name: float(np.square(mean - np.array(COLOURS[name])).sum()))


def _shape(mask: NDArray[np.bool_]) -> str:
    fill = float(np.median([_fill(frame) for frame in mask]))
    if fill < _TRIANGLE_BELOW:
        return "triangle"
    return "square" if fill > _SQUARE_ABOVE else "circle"


def _fill(mask: NDArray[np.bool_]) -> float:
    """Share of its bounding box that the mask fills."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return float(mask.sum() / box)


def _motion(mask: NDArray[np.bool_]) -> str:
    """The direction in which the centre goes, by a straight line through all frames (less noisy than two)."""
    centres = np.array([np.argwhere(frame).mean(axis=0)[::-1] for frame in mask])  # [time, (x, y)]
    travel = np.polyfit(np.arange(len(centres)), centres, 1)[0] * (len(centres) - 1)
    if np.hypot(*travel) < _LEAST_TRAVEL:
        return "still"
    return max((m for m in MOTIONS if m != "still"), key=lambda m: float(np.dot(travel, MOTIONS[m])))
