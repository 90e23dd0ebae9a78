"""Attention in parts: the log-sum-exp is right, and parts merge to the attention over all keys."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from armillary.parallel.flash import attend_with_lse, merge

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def tensors(queries: int, keys: int, heads: tuple[int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    shapes = [(queries, heads[0], 16), (keys, heads[1], 16), (keys, heads[1], 16)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.double().transpose(0, 1) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(0, 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)])
def test_output_and_log_sum_exp_are_those_of_the_formula(heads: tuple[int, int], dtype: torch.dtype) -> None:
    query, key, value = tensors(5, 7, heads, dtype)
    out, lse = attend_with_lse(query, key, value)
    assert (out.shape, out.dtype, lse.dtype) == (query.shape, dtype, torch.float32)
    assert torch.allclose(out.double(), exact(query, key, value), atol=TOLERANCE[dtype])
    of_query = key.double().repeat_interleave(heads[0] // heads[1], dim=1)
    scores = torch.einsum("nhd,mhd->nhm", query.double(), of_query) / 4
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=TOLERANCE[dtype])


@given(
    queries=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=60, deadline=None)
def test_parts_merge_to_the_attention_over_all_keys(
    queries: int, sizes: list[int], heads: tuple[int, int], dtype: torch.dtype
) -> None:
    query, key, value = tensors(queries, sum(sizes), heads, dtype)
    parts = [
        attend_with_lse(query, k, v)
        for k, v in zip(torch.split(key, sizes), torch.split(value, sizes), strict=True)
    ]
    merged = merge(parts, query)
    assert merged.dtype == dtype
    assert torch.allclose(merged.double(), exact(query, key, value), atol=TOLERANCE[dtype])


def test_scores_far_apart_merge_without_overflow() -> None:
    query, key, value = tensors(3, 4, (2, 2), torch.float32)
    parts = [
        attend_with_lse(query * 1e3, key[:2], value[:2]),
        attend_with_lse(query * 1e3, key[2:], value[2:]),
    ]
    merged = merge(parts, query)
    assert merged.isfinite().all()
    assert torch.allclose(merged.double(), exact(query * 1e3, key, value), atol=1e-4)


def test_no_part_at_all_is_no_rows_or_zeros() -> None:
    assert merge([], torch.ones(0, 2, 16)).shape == (0, 2, 16)
    assert not merge([], torch.ones(3, 2, 16)).any()


def test_one_part_stays_the_same_bits() -> None:
    query, key, value = tensors(3, 4, (2, 1), torch.bfloat16)
    part = attend_with_lse(query, key, value)
    assert merge([part], query) is part[0]
