"""The toy world: one coloured shape that moves, or stays, over plain ground.

A clip is a few numbers (`Clip`) drawn from a seed, so the data set is a range of seeds and nothing is
stored. Colours are the corners of the RGB cube around a grey ground: as far apart as colours can be, so
that a small autoencoder keeps them, and the ground is the zero of the model's [-1, 1] pixel range.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "held-out"]
SPLITS: tuple[Split, ...] = ("train", "held-out")
Frames = NDArray[np.uint8]  # [time, height, width, 3]

SIZE = 64
NUM_FRAMES = 9
FPS = 8
GROUND = (128, 128, 128)
SHAPES = ("circle", "square", "triangle")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (230, 26, 26),
    "green": (26, 230, 26),
    "blue": (26, 26, 230),
    "yellow": (230, 230, 26),
    "magenta": (230, 26, 230),
    "cyan": (26, 230, 230),
    "white": (230, 230, 230),
    "black": (26, 26, 26),
}
# unit steps in pixel coordinates: y grows downwards
MOTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "still": (0, 0),
}
_PHRASES = {motion: f"moving {motion}" for motion in MOTIONS} | {"still": "standing still"}
_TEMPLATES = (
    "a {colour} {shape} {motion}",
    "A {colour} {shape} {motion}",
    "{colour} {shape} {motion}",
    "a {colour} {shape} is {motion}",
)

_RADIUS = (13.0, 14.0)  # of the circle; the other shapes have the same area
_SPEED = (1.8, 2.0)  # pixels a frame
_STRAY = 1.5  # pixels by which the middle of the way is off the picture's: little, so that training is short


@dataclass(frozen=True)
class Clip:
    """One clip: what is seen, where its centre starts, and how fast it goes (pixels, pixels a frame)."""

    shape: str
    colour: str
    motion: str
    radius: float
    start: tuple[float, float]
    velocity: tuple[float, float]
    caption: str

    @property
    def labels(self) -> tuple[str, str, str]:
        """(shape, colour, motion): what the measure is held against."""
        return self.shape, self.colour, self.motion


def combinations(split: Split) -> list[tuple[str, str, str]]:
    """(shape, colour, motion) of a split: 96 to train on, 24 never seen in training.

    The held-out ones are a Latin square, so every shape, colour and motion, and every pair of a shape and a
    colour, is seen in training; only their meeting with one motion is not.
    """
    indexed = product(enumerate(SHAPES), enumerate(COLOURS), enumerate(MOTIONS))
    held_out = split == "held-out"
    return [
        (shape, colour, m)
        for (i, shape), (j, colour), (k, m) in indexed
        if ((i + j + k) % 5 == 0) == held_out
    ]


def captions(shape: str, colour: str, motion: str) -> list[str]:
    """The ways in which a clip may be described."""
    return [t.format(colour=colour, shape=shape, motion=_PHRASES[motion]) for t in _TEMPLATES]


def image_caption(shape: str, colour: str) -> str:
    """The description of a still picture: there is no motion to name."""
    return f"a {colour} {shape}"


def draw(seed: int, split: Split = "train") -> Clip:
    """The clip of a seed; consecutive seeds walk through the combinations, so the labels are balanced."""
    choices = combinations(split)
    shape, colour, motion = choices[seed % len(choices)]
    rng = np.random.default_rng([seed, len(choices)])
    step = MOTIONS[motion]
    speed = rng.uniform(*_SPEED)
    velocity = (step[0] * speed, step[1] * speed)
    middle = rng.uniform(SIZE / 2 - _STRAY, SIZE / 2 + _STRAY, 2)
    start = middle - np.array(velocity) * (NUM_FRAMES - 1) / 2
    wordings = captions(shape, colour, motion)
    return Clip(
        shape=shape,
        colour=colour,
        motion=motion,
        radius=rng.uniform(*_RADIUS),
        start=(float(start[0]), float(start[1])),
        velocity=velocity,
        caption=wordings[int(rng.integers(len(wordings)))],
    )


def render(clip: Clip, num_frames: int = NUM_FRAMES, size: int = SIZE) -> Frames:
    """The clip's frames, uint8 [num_frames, size, size, 3], edges smoothed over one pixel."""
    time = np.arange(num_frames, dtype=np.float32)[:, None, None]
    pixel = np.arange(size, dtype=np.float32) + 0.5
    x = pixel[None, None, :] - (clip.start[0] + clip.velocity[0] * time)
    y = pixel[None, :, None] - (clip.start[1] + clip.velocity[1] * time)
    cover = coverage(clip.shape, x, y, clip.radius)[..., None]
    ground, colour = np.array(GROUND, np.float32), np.array(COLOURS[clip.colour], np.float32)
    frames: Frames = np.rint(ground + cover * (colour - ground)).astype(np.uint8)
    return frames


def coverage(
    shape: str, x: NDArray[np.float32], y: NDArray[np.float32], radius: float
) -> NDArray[np.float32]:
    """How much of each pixel the shape covers, 0 to 1, at these places relative to its centre of mass."""
    covered: NDArray[np.float32] = np.clip(0.5 - _distance(shape, x, y, radius), 0.0, 1.0)
    return covered


def _distance(
    shape: str, x: NDArray[np.float32], y: NDArray[np.float32], radius: float
) -> NDArray[np.float32]:
    """Signed distance to the outline (negative inside), for shapes of the area of a circle of this radius."""
    if shape == "circle":
        return np.hypot(x, y) - np.float32(radius)
    if shape == "square":
        half_side = radius * np.sqrt(np.pi) / 2
        return np.maximum(np.abs(x), np.abs(y)) - np.float32(half_side)
    # an equilateral triangle standing on its base: its three edges are `inradius` from the centre
    inradius = radius * np.sqrt(np.pi / (3 * np.sqrt(3)))
    slanted = np.abs(x) * np.float32(np.sqrt(3) / 2) - y * np.float32(0.5)
    return np.maximum(slanted, y) - np.float32(inradius)
