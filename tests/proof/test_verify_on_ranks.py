"""The proof on real ranks: it holds for a sound layout, and it finds and names each planted mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.proof.judge import judge
from armillary.proof.prepare import Asked, prepare
from armillary.proof.report import VerifyReport
from armillary.proof.verify import compute

SMALL = {"size": "64x96", "num_frames": 5, "num_inference_steps": 2, "sound": False}
WHERE: Mapping[str, str | None] = {
    "nothing": None,
    "group_heads_wrongly": "layers.1.self_attn.add_k_proj",
    "give_heads_in_another_order": "layers.1.self_attn",
    "add_a_bias_twice": "layers.0.self_attn.to_add_out",
    "miss_a_reduce": "layers.1.mlp_moe_gen.down_proj",
    "change_a_replica": "layers.1.input_layernorm_moe_gen",
}
"""Fault -> the module where it must be found."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("proof") / "tiny", TinyOptions(layers=3, bias=True))


def reports(
    checkpoint: Path, layout: Layout, faults: Sequence[str], folder: Path, **asked: Any
) -> dict[str, VerifyReport]:
    """A proof of every fault, all of them on one group of ranks; the ranks find `planted` where tests do."""
    prepared = [
        prepare(checkpoint, layout, Asked(request=SMALL, after_load=f"planted:{fault}", **asked))
        for fault in faults
    ]
    left = compute([case for case, _ in prepared], folder)
    return {
        fault: judge(case, files, resolved)
        for fault, (case, resolved), files in zip(faults, prepared, left, strict=True)
    }


@pytest.fixture(scope="module")
def tp(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, VerifyReport]:
    folder = tmp_path_factory.mktemp("tp")
    return reports(checkpoint, Layout(tp=2), [*WHERE, "change_a_buffer"], folder, layers=2)


@pytest.mark.parametrize("fault", WHERE)
def test_a_mistake_is_found_where_it_is(tp: dict[str, VerifyReport], fault: str) -> None:
    assert (tp[fault].ok, tp[fault].first_divergence) == (fault == "nothing", WHERE[fault])


def test_a_sound_layout_is_within_law_5(tp: dict[str, VerifyReport]) -> None:
    report = tp["nothing"]
    assert report.ranks_equal
    assert 0 < report.relative_l2 <= report.tolerance
    assert list(report.blocks) == ["layers.0", "layers.1"]
    assert report.compared > 100
    assert not report.differing
    assert report.split_fraction == 1.0


def test_a_missing_reduce_leaves_ranks_unequal(tp: dict[str, VerifyReport]) -> None:
    assert not tp["miss_a_reduce"].ranks_equal


def test_a_replica_that_differs_is_named_with_its_rank(tp: dict[str, VerifyReport]) -> None:
    name = "layers.1.input_layernorm_moe_gen.weight"
    assert tp["change_a_replica"].differing == {name: {"what": "bits", "ranks": [1]}}


def test_a_buffer_that_differs_in_its_last_bit_is_named(tp: dict[str, VerifyReport]) -> None:
    report = tp["change_a_buffer"]
    assert report.differing == {"rotary_emb.inv_freq": {"what": "bits", "ranks": [0]}}
    assert (report.ok, report.first_divergence) == (False, "rotary_emb")
    assert report.relative_l2 <= report.tolerance


def test_weights_of_the_wrong_heads_are_named(tp: dict[str, VerifyReport]) -> None:
    name = "layers.1.self_attn.add_k_proj.weight"
    assert tp["group_heads_wrongly"].differing[name] == {"what": "bits", "ranks": [0, 1]}


@pytest.fixture(scope="module")
def gather(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, VerifyReport]:
    folder = tmp_path_factory.mktemp("gather")
    home = {"offload": "disk", "evict": "disk"}
    faults = ["nothing", "count_text_once_per_rank", "scale_one_layer"]
    return reports(checkpoint, Layout(gather=2), faults, folder, dtype="bfloat16", residency=home)


def test_a_context_axis_with_offload_holds_in_bfloat16(gather: dict[str, VerifyReport]) -> None:
    report = gather["nothing"]
    assert report.ok
    assert report.dtype == "bfloat16"
    assert report.replicated_dtypes.keys() == {"bfloat16", "float32"}


def test_a_wrong_layer_is_found_where_the_outputs_are_near_enough(gather: dict[str, VerifyReport]) -> None:
    report = gather["scale_one_layer"]
    assert all(output.ok for output in report.outputs.values())
    assert (report.ok, report.first_divergence) == (False, "layers.1.self_attn.to_add_out")


def test_text_keys_counted_once_per_rank_are_found_in_the_attention(gather: dict[str, VerifyReport]) -> None:
    report = gather["count_text_once_per_rank"]
    assert (report.ok, report.first_divergence) == (False, "layers.0.self_attn")
    assert report.ranks_equal
