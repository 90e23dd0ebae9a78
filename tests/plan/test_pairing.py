"""What one layer splits another must take up: pairs where they meet, and every way in which they miss."""

from typing import Any

import pytest
from skeletons import Shape, blocks, skeleton

from armillary import Colwise, Layout, Optional, PackedColwise, PackedRowwise, PlanError, resolve
from armillary.errors import Problem

# attention of 8 features, an MLP of 24, and a single-stream block whose output layer takes both
DOUBLE: dict[str, Shape] = {
    "attn.to_q.weight": (8, 6),
    "attn.to_k.weight": (8, 6),
    "attn.to_out.0.weight": (6, 8),
    "ff.net.0.proj.weight": (24, 6),
    "ff.net.2.weight": (6, 24),
}
SINGLE: dict[str, Shape] = {
    "attn.to_q.weight": (8, 6),
    "attn.to_k.weight": (8, 6),
    "proj_mlp.weight": (24, 6),
    "proj_out.weight": (6, 32),
}
DOUBLE_PLAN: dict[str, Any] = {
    "attn.to_q": "colwise",
    "attn.to_k": "colwise",
    "attn.to_out.0": "rowwise",
    "ff.net.0.proj": "colwise",
    "ff.net.2": "rowwise",
}
SINGLE_PLAN: dict[str, Any] = {
    "attn.to_q": "colwise",
    "attn.to_k": "colwise",
    "proj_mlp": "colwise",
    "proj_out": PackedRowwise([8, 24]),
}


def _problems(
    layers: dict[str, Shape], plan: dict[str, Any], without: tuple[str, ...] = (), **changed: Any
) -> list[Problem]:
    """The problems of a model of three such blocks; keys of `plan` are names in a block."""
    kept = {key: style for key, style in (plan | changed).items() if key not in without}
    try:
        resolve(skeleton(blocks(3, layers)), Layout(), plan={f"blocks.*.{k}": s for k, s in kept.items()})
    except PlanError as error:
        return list(error.problems)
    return []


def _lines(problems: list[Problem]) -> list[str]:
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(("layers", "plan"), [(DOUBLE, DOUBLE_PLAN), (SINGLE, SINGLE_PLAN)])
def test_columns_and_rows_meet_in_the_module_that_holds_both(
    layers: dict[str, Shape], plan: dict[str, Any]
) -> None:
    assert _problems(layers, plan) == []


def test_a_column_split_that_nobody_joins_is_refused_with_the_layer_that_could() -> None:
    problems = _problems(DOUBLE, DOUBLE_PLAN, without=("ff.net.2",))
    assert _lines(problems) == [
        "blocks.*.ff.net.0.proj is split by columns, and no row split takes its parts: blocks.*.ff.net.2 is "
        "whole; give blocks.*.ff.net.2 rowwise, or use Colwise(gather=True) to make the output whole"
    ]


def test_the_row_of_another_module_joins_nothing() -> None:
    problems = _problems(DOUBLE, DOUBLE_PLAN, without=("attn.to_out.0",))
    assert [problem.rule for problem in problems] == ["column-unjoined"] * 2
    assert all("give blocks.*.attn.to_out.0 rowwise" in problem.fix for problem in problems)


def test_a_row_split_that_nobody_feeds_is_refused_with_the_layer_that_could() -> None:
    problems = _problems(DOUBLE, DOUBLE_PLAN, without=("ff.net.0.proj",))
    assert _lines(problems) == [
        "blocks.*.ff.net.2 is split by rows, and no column split feeds it: blocks.*.ff.net.0.proj is whole; "
        "give blocks.*.ff.net.0.proj colwise, or leave it whole"
    ]


def test_a_part_of_a_row_that_nobody_feeds_is_refused() -> None:
    (problem,) = _problems(SINGLE, SINGLE_PLAN, without=("proj_mlp",))
    assert str(problem) == (
        "packed_rowwise splits blocks.*.proj_out in parts of 8 + 24 inputs, and no column-split layer of "
        "blocks.* makes 24: attn.to_q (8), attn.to_k (8); give blocks.*.proj_mlp colwise too, or use "
        "packed_rowwise with [1] if widths mislead"
    )


def test_a_plain_row_over_a_concatenation_is_refused_with_its_parts() -> None:
    (problem,) = _problems(SINGLE, SINGLE_PLAN, proj_out="rowwise")
    assert problem.rule == "packed-plain"
    assert "use packed_rowwise with [8, 24] in its order" in problem.fix


def test_a_plain_column_that_is_wider_than_what_is_taken_is_fused() -> None:
    (problem,) = _problems(DOUBLE | {"ff.net.0.proj.weight": (48, 6)}, DOUBLE_PLAN)
    assert str(problem) == (
        "colwise splits blocks.*.ff.net.0.proj in parts of 48 outputs, wider than what the row-split layers "
        "of blocks.*.ff.net take: 2 (24); it is fused: use packed_colwise with [1, 1], or with [1] if it is "
        "one part after all"
    )


@pytest.mark.parametrize("name", ["to_qkv", "to_added_qkv", "qkv", "kv_proj", "gate_up_proj", "to_qkv_mlp"])
def test_a_layer_whose_name_says_that_it_is_fused_is_not_split_as_one(name: str) -> None:
    layers: dict[str, Shape] = {f"attn.{name}.weight": (8, 6), "attn.out.weight": (6, 8)}
    (problem,) = _problems(layers, {f"attn.{name}": "colwise", "attn.out": "rowwise"})
    assert problem.rule == "packed-plain"
    assert f"blocks.*.attn.{name}" in problem.message


def test_a_plan_can_say_that_a_layer_is_one_part_after_all() -> None:
    layers: dict[str, Shape] = {"gate_up.weight": (48, 6), "down.weight": (6, 24)}
    assert _problems(layers, {"gate_up": PackedColwise([1]), "down": "rowwise"}) == []
    assert _problems(layers, {"gate_up": "colwise", "down": "rowwise"}) != []


def test_a_gathered_output_needs_nobody() -> None:
    layers = DOUBLE | {"ada.linear.weight": (36, 6)}
    plan = DOUBLE_PLAN | {"ada.linear": Colwise(gather=True)}
    assert _problems(layers, plan) == []


def test_a_grouped_key_is_narrower_than_what_is_taken() -> None:
    assert _problems(DOUBLE | {"attn.to_k.weight": (4, 6)}, DOUBLE_PLAN) == []


def test_experts_are_paired_one_by_one() -> None:
    experts: dict[str, Shape] = {}
    for expert in range(2):
        experts |= {f"ff.experts.{expert}.w1.weight": (8, 6), f"ff.experts.{expert}.w2.weight": (6, 8)}
    plan: dict[str, Any] = {"ff.experts.*.w1": "colwise", "ff.experts.*.w2": "rowwise"}
    assert _problems(experts, plan) == []
    (problem,) = _problems(experts, plan, without=("ff.experts.*.w2",))
    assert "give blocks.*.ff.experts.*.w2 rowwise" in problem.fix


def test_a_wildcard_over_layers_is_no_block() -> None:
    layers: dict[str, Shape] = {"up.0.weight": (8, 6), "up.1.weight": (8, 6), "down.weight": (6, 8)}
    plan: dict[str, object] = {"up.*": "colwise", "down": "rowwise"}
    assert len(resolve(skeleton(layers), Layout(tp=2), plan=plan).shards) == 3


def test_an_optional_row_on_some_blocks_leaves_the_others_unjoined() -> None:
    model = skeleton(blocks(1, {"up.weight": (8, 6), "down.weight": (6, 8)}) | {"blocks.1.up.weight": (8, 6)})
    with pytest.raises(PlanError, match=r"blocks\.\*\.up is split by columns, and no row split takes"):
        resolve(model, Layout(), plan={"blocks.*.up": "colwise", "blocks.*.down": Optional("rowwise")})


def test_a_model_without_blocks_is_paired_as_one() -> None:
    model = skeleton({"attn.to_q.weight": (8, 6), "proj_out.weight": (6, 8), "head.weight": (9, 6)})
    plan: dict[str, object] = {"attn.to_q": "colwise", "proj_out": "rowwise", "head": Colwise(gather=True)}
    assert set(resolve(model, Layout(tp=2), plan=plan).shards) == set(model.parameters)


def test_a_slip_is_not_told_a_second_time_as_a_missing_partner() -> None:
    (problem,) = _problems(DOUBLE, DOUBLE_PLAN | {"ff.net.0.prj": "colwise"}, without=("ff.net.0.proj",))
    assert problem.rule == "key-matches-nothing"


def test_a_fused_and_an_unfused_model_go_by_one_plan() -> None:
    fused: dict[str, Shape] = {"attn.to_qkv.weight": (24, 6), "attn.to_out.0.weight": (6, 8)}
    plan: dict[str, Any] = {
        "attn.to_q": Optional("colwise"),
        "attn.to_k": Optional("colwise"),
        "attn.to_qkv": Optional(PackedColwise([1, 1, 1])),
        "attn.to_out.0": "rowwise",
    }
    assert _problems(fused, plan) == []
    assert _problems({name: shape for name, shape in DOUBLE.items() if "attn" in name}, plan) == []
