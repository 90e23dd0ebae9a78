import numpy as np
import pytest
from toy.clips import GROUND, NUM_FRAMES, SIZE, Clip, Frames, draw, render
from toy.measure import NOTHING, score, see

CLIPS = [draw(seed, "held-out") for seed in range(240)]
LABELS = [clip.labels for clip in CLIPS]


@pytest.fixture(scope="module")
def frames() -> list[Frames]:
    return [render(clip) for clip in CLIPS]


def test_it_is_right_on_true_held_out_clips(frames: list[Frames]) -> None:
    assert min(score(frames, LABELS)) >= 0.98


def test_it_is_near_chance_when_the_labels_are_shuffled(frames: list[Frames]) -> None:
    order = np.random.default_rng(0).permutation(len(LABELS))
    shuffled = score(frames, [LABELS[i] for i in order])
    chance = (1 / 3, 1 / 8, 1 / 5)
    assert shuffled[:3] == pytest.approx(chance, abs=0.1)


def test_it_bears_noise_and_blur(frames: list[Frames]) -> None:
    noise = np.random.default_rng(0).normal(0, 8, frames[0].shape)
    worn = [np.clip(_blur(each) + noise, 0, 255).astype(np.uint8) for each in frames]
    assert min(score(worn, LABELS)) >= 0.95


def _blur(frames: Frames) -> np.ndarray:
    wide = np.pad(frames.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    blurred: np.ndarray = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4
    return blurred


def test_it_sees_nothing_on_empty_ground() -> None:
    empty = np.full((NUM_FRAMES, SIZE, SIZE, 3), GROUND, dtype=np.uint8)
    assert see(empty) == NOTHING


def test_it_sees_no_shape_in_noise() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (NUM_FRAMES, SIZE, SIZE, 3), dtype=np.uint8)
    assert see(noise).motion in {"still", "none"}


def test_it_sees_nothing_in_a_clip_that_loses_its_shape(frames: list[Frames]) -> None:
    broken = frames[0].copy()
    broken[4:] = GROUND
    assert see(broken) == NOTHING


@pytest.mark.parametrize(
    ("velocity", "motion"), [((0.2, 0.0), "still"), ((-1.5, 0.4), "left"), ((0.3, 1.5), "down")]
)
def test_the_longer_way_names_the_motion(velocity: tuple[float, float], motion: str) -> None:
    clip = Clip("circle", "red", motion, 10.0, (32.0, 32.0), velocity, "")
    assert see(render(clip)).motion == motion
