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

from toy.clips import COLOURS, GROUND, MOTIONS, SHAPES, Frames, coverage

_STANDS_OUT = 0.5  # of the clip's strongest contrast: where an edge that is smoothed or blurred lies
_LEAST_CONTRAST = 40.0  # of 255; less is ground with noise, nothing is seen
_LEAST_PIXELS = 30
_LEAST_TRAVEL = 5.0  # pixels from the first frame to the last; less is standing still


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
    centres = np.array([np.argwhere(frame).mean(axis=0)[::-1] for frame in mask])  # [time, (x, y)]
    return Seen(_shape(mask, centres), _colour(pixels[mask & (contrast > 0.8 * peak)]), _motion(centres))


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


def _shape(mask: NDArray[np.bool_], centres: NDArray[np.float64]) -> str:
    """The shape whose ideal of the same area and centre differs from the mask in the fewest pixels."""
    rows, columns = np.indices(mask.shape[1:])
    x = (columns - centres[:, 0, None, None]).astype(np.float32)
    y = (rows - centres[:, 1, None, None]).astype(np.float32)
    radius = float(np.sqrt(mask.sum(axis=(1, 2)).mean() / np.pi))
    return min(SHAPES, key=lambda shape: float(np.abs(coverage(shape, x, y, radius) - mask).sum()))


def _motion(centres: NDArray[np.float64]) -> str:
    """The direction in which the centre goes, by a straight line through all frames (less noisy than two)."""
    travel = np.polyfit(np.arange(len(centres)), centres, 1)[0] * (len(centres) - 1)
    if np.hypot(*travel) < _LEAST_TRAVEL:
        return "still"
    return max((m for m in MOTIONS if m != "still"), key=lambda m: float(np.dot(travel, MOTIONS[m])))
