"""Law 5 as arithmetic, and the search for the first layer that breaks it."""

import math

import pytest
import torch

from armillary.proof.law import by_block, first_divergence, is_routed, relative_l2, tolerance
from armillary.proof.watch import Place

OUT = Place("blocks.0.attn.to_q", "output", 0)
HEADS = Place("blocks.0.attn.to_out.0", "input", 0)
LATER = Place("blocks.1.mlp", "output", 0)
ORDER = [(0, OUT), (0, HEADS), (0, LATER), (1, OUT)]


def test_float32_may_always_be_1e_5_apart() -> None:
    assert tolerance("float32", 1e-7) == tolerance("float32", None) == 1e-5


def test_float32_may_be_four_times_as_far_as_rounding_goes() -> None:
    assert tolerance("float32", 1e-4) == 4e-4


def test_a_half_dtype_may_be_twice_as_far_as_one_process_in_it() -> None:
    assert tolerance("bfloat16", 1e-2) == 2e-2


def test_not_a_number_is_infinitely_far() -> None:
    assert relative_l2(torch.tensor([math.nan]), torch.ones(1)) == math.inf
    assert relative_l2(torch.ones(1), torch.tensor([math.inf])) == math.inf


def test_the_first_in_the_order_of_the_computation_is_named() -> None:
    found = first_divergence(ORDER, {(1, OUT): 1.0, (0, LATER): 1e-3}, {}, "float32")
    assert found is not None
    assert (found.module, found.block, found.call) == ("blocks.1.mlp", "blocks.1", 0)


def test_a_wrong_input_is_the_fault_of_what_feeds_it() -> None:
    found = first_divergence(ORDER, {(0, HEADS): 0.1}, {}, "float32")
    assert found is not None
    assert (found.module, found.tensor) == ("blocks.0.attn", "input of blocks.0.attn.to_out.0")


def test_what_rounding_does_in_one_process_is_no_divergence() -> None:
    assert first_divergence(ORDER, {(0, OUT): 3e-3}, {(0, OUT): 1e-3}, "float32") is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_half_dtype_has_a_coarser_floor(dtype: str) -> None:
    assert first_divergence(ORDER, {(0, OUT): 9e-4}, {}, dtype) is None
    assert first_divergence(ORDER, {(0, OUT): 9e-4}, {}, "float32") is not None


def test_experts_that_a_router_picks_are_told_from_shared_ones() -> None:
    assert is_routed("blocks.0.ff_i.experts.1.w3")
    assert not is_routed("blocks.0.ff_i.shared_experts.w3")


def test_blocks_have_their_worst_distance_in_the_order_of_their_numbers() -> None:
    values = {(0, Place(f"layers.{n}.x", "output", 0)): n / 10 for n in (10, 2)}
    assert by_block({**values, (1, Place("layers.2.y", "output", 0)): 0.5}) == {
        "layers.2": 0.5,
        "layers.10": 1.0,
    }
