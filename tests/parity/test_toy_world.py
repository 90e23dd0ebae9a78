"""The shipped checkpoint draws the same clip on every layout: a fault would be seen in the picture."""

import numpy as np
import pytest

import armillary
from armillary import GenerationResult, Layout
from armillary.engine.media import whole

REQUEST = {"prompt": "a blue square moving right", "seed": 5, "num_inference_steps": 10}


@pytest.fixture(scope="module")
def alone() -> GenerationResult:
    return armillary.generate(REQUEST, "toy-world")


@pytest.mark.parametrize(
    "layout", [Layout(tp=2), Layout(tp=4), Layout(cfg=2, ulysses=2)], ids=lambda layout: str(layout)
)
def test_ranks_draw_what_one_process_draws(alone: GenerationResult, layout: Layout) -> None:
    shared = armillary.generate(REQUEST, "toy-world", layout)
    assert alone.media is not None
    assert shared.media is not None
    apart = np.abs(whole(shared.media.frames).astype(float) - whole(alone.media.frames)).mean()
    assert apart < 1, "of 255, on average"
    one, several = alone.media.latents, shared.media.latents
    assert np.linalg.norm(several - one) <= 1e-5 * np.linalg.norm(one)
