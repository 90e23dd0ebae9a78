"""What a proof in bfloat16 is measured with: one process's own rounding; a fault hides below it."""

import pytest
import torch
from denoising import cast, denoise, distance

from armillary.models.tiny_cases import TinyCase, tiny_cases


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")
@pytest.mark.parametrize("case", list(tiny_cases()), ids=lambda case: case.label)
def test_one_process_in_bfloat16_is_near_float32(case: TinyCase) -> None:
    exact = denoise(case.model(), case.inputs(), steps=1)
    rounded = denoise(case.model().bfloat16(), cast(case.inputs(), torch.bfloat16), steps=1)
    assert 1e-3 < distance(rounded, exact) < 0.05
