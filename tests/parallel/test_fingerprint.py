"""The digest by which ranks find out that they hold different bits."""

import pytest
import torch
from hypothesis import given, strategies as st

from armillary.parallel.fingerprint import fingerprint

SIZES = [1, 2, 7, 48, 511, 512, 4096, 5000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64])
def test_equal_bits_have_equal_fingerprints_wherever_they_lie(dtype: torch.dtype) -> None:
    whole = torch.randint(0, 100, (3, 4099)).to(dtype)
    for row in whole:
        assert fingerprint(row) == fingerprint(row.clone())
        assert fingerprint(row[1:]) == fingerprint(row[1:].clone())


@given(size=st.sampled_from(SIZES), at=st.integers(0, 10**6), bit=st.integers(0, 15))
def test_one_other_bit_shows(size: int, at: int, bit: int) -> None:
    tensor = torch.arange(size, dtype=torch.int16)
    other = tensor.clone()
    other[at % size] ^= 1 << bit if bit < 15 else -(1 << 15)
    assert fingerprint(tensor) != fingerprint(other)


@given(size=st.sampled_from(SIZES[1:]), a=st.integers(0, 10**6), b=st.integers(0, 10**6))
def test_exchanged_values_show(size: int, a: int, b: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = tensor.clone()
    other[a % size], other[b % size] = tensor[b % size], tensor[a % size]
    # 511 words apart they have the same weight
    assert (fingerprint(tensor) == fingerprint(other)) == ((a % size - b % size) % 511 == 0)


@pytest.mark.parametrize("shape", [(64, 64), (128, 512), (8, 16), (320, 64)])
def test_exchanged_rows_show(shape: tuple[int, int]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert fingerprint(tensor) != fingerprint(tensor.flip(0))


def test_shape_and_dtype_show() -> None:
    tensor = torch.zeros(4, 6)
    digests = {fingerprint(t) for t in (tensor, tensor.view(6, 4), tensor.view(torch.int32), tensor.double())}
    assert len(digests) == 4


def test_a_tensor_without_values_has_one_too() -> None:
    assert fingerprint(torch.empty(0, 3)) != fingerprint(torch.empty(3, 0))
    assert fingerprint(torch.empty(2, 3, device="meta")) == fingerprint(torch.empty(2, 3, device="meta"))
    assert fingerprint(torch.tensor(1.5)) != fingerprint(torch.tensor(2.5))
