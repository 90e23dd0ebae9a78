"""`resolve`: skeleton, plan and layout become what every rank holds, or every reason why not, at once."""

from dataclasses import replace
from typing import Any

import pytest
from skeletons import blocks, skeleton

from armillary import (
    ArmillaryError,
    Colwise,
    Layout,
    LayoutError,
    Optional,
    ParallelPlan,
    PlanError,
    ResolvedPlan,
    resolve,
)
from armillary.plan.degrees import legal_degrees
from armillary.plan.ranges import Segment
from armillary.plan.skeleton import HeadGroup

HEADS = HeadGroup(
    "blocks.*",
    8,
    2,
    4,
    outputs={"q": ("query",), "k": ("key_value",), "v": ("key_value",)},
    inputs={"out": ("query",)},
    counts={"heads": "query", "kv_heads": "key_value", "groups": "queries_per_key_value"},
)
LAYERS = {"q.weight": (32, 6), "k.weight": (8, 6), "v.weight": (8, 6), "out.weight": (6, 32)}
MODEL = skeleton(
    blocks(2, LAYERS | {"up.weight": (16, 6), "up.bias": (16,), "down.weight": (6, 16)})
    | {"embed.weight": (11, 6), "norm.weight": (6,)},
    [HEADS],
)
PLAN = ParallelPlan(
    {
        "embed": "vocab_split",
        "blocks.*.q": "colwise",
        "blocks.*.k": "colwise",
        "blocks.*.v": "colwise",
        "blocks.*.out": "rowwise",
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
        "blocks.*.gate_proj": Optional("colwise"),
    }
)


def _resolved(tp: int, overrides: dict[str, Any] | None = None) -> ResolvedPlan:
    return resolve(MODEL, Layout(tp=tp), plan=PLAN, overrides=overrides)


def test_split_parameters_have_shards_and_the_others_are_replicated() -> None:
    resolved = _resolved(2)
    assert set(resolved.shards) | {"norm.weight"} == set(MODEL.parameters)
    assert resolved.replicated == ("norm.weight",)
    assert resolved.skipped_optional == ("blocks.*.gate_proj",)


def test_one_rank_holds_the_whole_model() -> None:
    resolved = _resolved(1)
    assert resolved.shards == {}
    assert resolved.replicated == tuple(MODEL.parameters)
    assert resolved.bytes_on(0) == MODEL.nbytes
    assert resolved.heads["blocks.0"].local_query == 8


def test_shapes_and_bytes_of_a_rank_follow_its_ranges() -> None:
    resolved = _resolved(4)
    assert resolved.local_shape("blocks.1.down.weight", 3) == (6, 4)
    assert resolved.local_shape("embed.weight", 3) == (2, 6)
    assert resolved.local_shape("norm.weight", 3) == (6,)
    assert resolved.bytes_on(0) - resolved.bytes_on(3) == 6 * 4  # a row of the embedding more


@pytest.mark.parametrize(
    ("tp", "query", "key_value", "groups"), [(1, 8, 2, 4), (2, 4, 1, 4), (4, 2, 1, 2), (8, 1, 1, 1)]
)
def test_local_head_counts_stand_beside_the_full_ones(
    tp: int, query: int, key_value: int, groups: int
) -> None:
    heads = _resolved(tp).heads["blocks.1"]
    assert (heads.full_query, heads.full_key_value, heads.head_dim) == (8, 2, 4)
    local = {name: heads.local(count) for name, count in heads.counts.items()}
    assert local == {"heads": query, "kv_heads": key_value, "groups": groups}


def test_an_attention_without_styles_keeps_all_its_heads() -> None:
    resolved = resolve(MODEL, Layout(tp=4), plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"})
    assert resolved.heads["blocks.0"].local_query == 8


def test_every_reason_against_a_degree_is_told_with_the_legal_ones() -> None:
    with pytest.raises(LayoutError) as caught:
        _resolved(3)
    assert [str(problem) for problem in caught.value.problems] == [
        f"tp=3 {reason}; use tp=1, 2, 4 or 8 (K/V heads are replicated above 2)"
        for reason in (
            "does not divide the 8 query heads of Toy",
            "neither divides nor is a multiple of the 2 K/V heads of Toy",
            "does not divide the 16 features of blocks.*.up.weight in Toy",
        )
    ]


def test_without_replicated_heads_there_is_no_word_of_them() -> None:
    with pytest.raises(LayoutError, match=r"use tp=1, 2, 4, 8 or 16$"):
        resolve(MODEL, Layout(tp=3), plan={"blocks.*.up": "colwise", "blocks.*.down": "rowwise"})
    widths: dict[str, tuple[int, ...]] = {"q.weight": (8, 6), "k.weight": (8, 6), "out.weight": (6, 8)}
    attention = skeleton(blocks(1, widths), [replace(HEADS, key_value_heads=8, head_dim=1)])
    with pytest.raises(LayoutError, match=r"use tp=1, 2, 4 or 8$"):
        resolve(
            attention,
            Layout(tp=3),
            plan={f"blocks.*.{name}": PLAN.entries[f"blocks.*.{name}"] for name in ("q", "k", "out")},
        )


@pytest.mark.parametrize(
    ("segments", "legal"),
    [
        ([], [1]),
        ([Segment(12), Segment(18)], [1, 2, 3, 6]),
        ([Segment(12), Segment(2, 4, copies=True)], [1, 2, 4, 6, 12]),
        ([Segment(4), Segment(7, uneven=True)], [1, 2, 4]),
    ],
)
def test_legal_degrees_are_those_that_every_segment_allows(segments: list[Segment], legal: list[int]) -> None:
    assert legal_degrees(dict.fromkeys(segments)) == legal


def test_ulysses_shares_the_heads_that_tp_left_to_a_rank() -> None:
    assert resolve(MODEL, Layout(tp=2, ulysses=4), plan=PLAN).heads["blocks.0"].local_query == 4
    with pytest.raises(LayoutError) as caught:
        resolve(MODEL, Layout(tp=2, ulysses=8), plan=PLAN)
    assert str(caught.value) == (
        "ulysses=8 cannot share the 4 query and 1 K/V heads that a rank of Toy has at tp=2; "
        "use ulysses=1, 2 or 4, or gather, which has no such rule"
    )


def test_an_attention_split_halfway_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        _resolved(2, {"blocks.*.k": None, "blocks.*.v": None})
    assert str(caught.value) == (
        "blocks.* has q, out split and k, v whole; give each of them a style, or none"
    )


def test_every_problem_of_a_plan_is_told_at_once() -> None:
    wrong: dict[str, Any] = {
        "blocks.*.uq": "colwise",
        "blocks.*.down.*": Optional("rowwise"),
        "blocks": "colwise",
        "norm": "colwise",
        "blocks.0.up": Colwise(),
        "blocks.*.v": None,
    }
    with pytest.raises(PlanError) as caught:
        _resolved(2, wrong)
    rules = [problem.rule for problem in caught.value.problems]
    assert sorted(rules) == [
        "heads-together",
        "key-matches-nothing",
        "style-fits",
        "style-fits",
        "two-keys",
        "wildcard-list",
    ]


def test_a_plan_that_does_not_fit_is_refused_at_one_rank_too() -> None:
    with pytest.raises(PlanError, match="matches nothing"):
        _resolved(1, {"blocks.*.uq": "colwise"})


def test_what_is_resolved_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        _resolved(2).shards["norm.weight"] = _resolved(2).shards["embed.weight"]  # type: ignore[index]


def test_faults_of_the_plan_and_of_both_degrees_are_told_at_once() -> None:
    with pytest.raises(ArmillaryError) as caught:
        resolve(MODEL, Layout(tp=3, ulysses=3), plan=PLAN, overrides={"blocks.*.upp": "colwise"})
    rules = {problem.rule for problem in caught.value.problems}
    assert rules == {"key-matches-nothing", "tp-divides", "ulysses-divides"}
