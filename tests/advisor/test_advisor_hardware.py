"""Cards by name and by numbers."""

import pytest

from armillary.advisor.hardware import GIB, GPUS, described_gpu, find_gpu
from armillary.errors import RequestError


@pytest.mark.parametrize("name", GPUS)
def test_every_card_has_a_source_and_plausible_numbers(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.source
    assert gpu.memory_bytes > 20 * GIB
    assert 0.3 < gpu.watts_per_tflop < 3
    assert gpu.node_link <= gpu.link


def test_an_unknown_card_is_answered_with_the_known_ones_and_the_flags() -> None:
    with pytest.raises(RequestError, match=r"h100-80gb.*mi300x.*--memory-gb, --tflops"):
        find_gpu("h9000")


def test_a_described_card_needs_its_memory_only() -> None:
    gpu = described_gpu(memory_gb=48)
    assert gpu.memory_bytes == 48 * GIB
    assert gpu.tflops == GPUS["h100-80gb"].tflops


def test_numbers_change_a_named_card() -> None:
    gpu = described_gpu(GPUS["l40s"], memory_gb=24, link=64)
    assert (gpu.memory_bytes, gpu.link, gpu.tflops) == (24 * GIB, 64, GPUS["l40s"].tflops)


def test_every_wrong_number_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        described_gpu(memory_gb=0, tflops=-1, bandwidth=float("inf"))
    assert len(caught.value.problems) == 3
