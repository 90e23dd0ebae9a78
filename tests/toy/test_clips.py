from collections import Counter

import numpy as np
import pytest
from toy.clips import (
    COLOURS,
    GROUND,
    MOTIONS,
    NUM_FRAMES,
    SHAPES,
    SIZE,
    SPLITS,
    Clip,
    combinations,
    draw,
    render,
)

CLIPS = [draw(seed, split) for split in SPLITS for seed in range(96)]


def test_a_seed_always_draws_the_same_clip() -> None:
    assert draw(7) == draw(7)
    assert render(draw(7)).tobytes() == render(draw(7)).tobytes()


def test_another_seed_of_the_same_combination_draws_another_clip() -> None:
    first, second = draw(0), draw(len(combinations("train")))
    assert first.labels == second.labels
    assert first.start != second.start


def test_the_splits_share_no_combination_and_together_hold_all() -> None:
    train, held_out = (set(combinations(split)) for split in SPLITS)
    assert not train & held_out
    assert len(train | held_out) == len(SHAPES) * len(COLOURS) * len(MOTIONS)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_shape_colour_and_motion_is_trained_on_and_held_out(axis: int) -> None:
    named = (SHAPES, tuple(COLOURS), tuple(MOTIONS))[axis]
    for split in SPLITS:
        assert set(Counter(labels[axis] for labels in combinations(split))) == set(named)


def test_every_shape_is_seen_in_every_colour_in_training() -> None:
    pairs = {labels[:2] for labels in combinations("train")}
    assert len(pairs) == len(SHAPES) * len(COLOURS)


@pytest.mark.parametrize("clip", CLIPS[::7], ids=lambda clip: " ".join(clip.labels))
def test_a_clip_keeps_its_shape_whole_inside_every_frame(clip: Clip) -> None:
    frames = render(clip)
    assert frames.shape == (NUM_FRAMES, SIZE, SIZE, 3)
    border = np.concatenate([frames[:, [0, -1]].reshape(-1, 3), frames[:, :, [0, -1]].reshape(-1, 3)])
    assert (border == GROUND).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_one_radius_cover_the_same_area(shape: str) -> None:
    clip = Clip(shape, "white", "still", 10.0, (32.0, 32.0), (0.0, 0.0), "")
    contrast = np.float32(COLOURS["white"][0] - GROUND[0])
    area = (render(clip, 1)[0, :, :, 0].astype(np.float32) - GROUND[0]).sum() / contrast
    assert area == pytest.approx(np.pi * 10.0**2, rel=0.02)


def test_a_caption_names_what_is_seen() -> None:
    for clip in CLIPS:
        words = clip.caption.lower().strip(".").split()
        assert {clip.shape, clip.colour, clip.motion} <= set(words)
