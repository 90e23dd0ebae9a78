"""Attention that no head facts describe: its projections are known by their names, and split alike."""

from typing import Any

import pytest
from skeletons import Shape, blocks, skeleton

from armillary import Layout, NormSplit, PlanError, resolve
from armillary.plan.skeleton import HeadGroup

LAYERS: dict[str, Shape] = {
    "attn.to_q.weight": (8, 6),
    "attn.to_k.weight": (4, 6),
    "attn.to_v.weight": (4, 6),
    "attn.add_k_proj.weight": (4, 6),
    "attn.to_out.0.weight": (6, 8),
    "attn.to_add_out.weight": (6, 8),
}
PLAN: dict[str, Any] = {
    "attn.to_q": "colwise",
    "attn.to_k": "colwise",
    "attn.to_v": "colwise",
    "attn.add_k_proj": "colwise",
    "attn.to_out.0": "rowwise",
    "attn.to_add_out": "rowwise",
}


def _refused(plan: dict[str, Any], layers: dict[str, Shape] = LAYERS) -> list[str]:
    try:
        resolve(skeleton(blocks(2, layers)), Layout(), plan={f"blocks.*.{k}": v for k, v in plan.items()})
    except PlanError as error:
        return [str(problem) for problem in error.problems]
    return []


def _without(*names: str) -> dict[str, Any]:
    return {key: style for key, style in PLAN.items() if key.removeprefix("attn.") not in names}


def test_projections_that_are_split_alike_are_in_order() -> None:
    assert _refused(PLAN) == []


@pytest.mark.parametrize(
    ("forgotten", "halves"),
    [
        (("to_k",), "to_q, to_v, add_k_proj split by columns and to_k not"),
        (("to_v", "add_k_proj"), "to_q, to_k split by columns and to_v, add_k_proj not"),
        (("to_q",), "to_k, to_v, add_k_proj split by columns and to_q not"),
    ],
)
def test_query_key_and_value_split_differently_are_named(forgotten: tuple[str, ...], halves: str) -> None:
    fix = "heads stay with their keys and values: give each of them a column style, or none"
    assert f"blocks.*.attn has {halves}; {fix}" in _refused(_without(*forgotten))


def test_an_output_projection_beside_one_that_is_split_is_split_too() -> None:
    assert _refused(_without("to_add_out")) == [
        "blocks.*.attn is split by heads, and to_add_out, which takes them, is whole; "
        "give blocks.*.attn.to_add_out rowwise"
    ]


def test_a_norm_over_all_heads_is_split_with_them() -> None:
    layers = LAYERS | {"attn.norm_q.weight": (8,), "attn.norm_k.weight": (4,)}
    assert _refused(PLAN, layers) == [
        "blocks.*.attn: norm_q, norm_k go over all heads and are whole, and the heads are split; "
        "give blocks.*.attn.norm_q or blocks.*.attn.norm_k norm_split"
    ]
    split = PLAN | {"attn.norm_q": NormSplit(), "attn.norm_k": NormSplit()}
    assert not [line for line in _refused(split, layers) if "whole" in line]


def test_a_norm_of_one_head_stays_whole() -> None:
    assert _refused(PLAN, LAYERS | {"attn.norm_q.weight": (2,)}) == []


def test_head_facts_go_before_names() -> None:
    heads = HeadGroup("blocks.*.attn", 4, 4, 2, {"to_q": ("query",)}, {"to_out.0": ("query",)})
    layers: dict[str, Shape] = {"attn.to_q.weight": (8, 6), "attn.to_k.weight": (8, 6)}
    model = skeleton(blocks(2, layers | {"attn.to_out.0.weight": (6, 8)}), [heads])
    plan: dict[str, object] = {"blocks.*.attn.to_q": "colwise", "blocks.*.attn.to_out.0": "rowwise"}
    assert "blocks.0.attn.to_q.weight" in resolve(model, Layout(tp=2), plan=plan).shards


def test_a_fused_projection_beside_split_ones_is_split_too() -> None:
    lines = _refused(PLAN, LAYERS | {"attn.to_qkv.weight": (16, 6)})
    assert any("add_k_proj split by columns and to_qkv not" in line for line in lines)
