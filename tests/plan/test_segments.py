"""A style on a layer: what it splits, and every way in which it does not fit."""

from typing import Any

import pytest
from skeletons import blocks, skeleton

from armillary import (
    Colwise,
    Layout,
    PackedColwise,
    PackedRowwise,
    PlanError,
    ResolvedPlan,
    Rowwise,
    Skeleton,
    VocabSplit,
    resolve,
)
from armillary.plan.skeleton import HeadGroup

# hidden and query widths are equal, so that no shape gives a wrong side away
HEADS = HeadGroup(
    "blocks.*.attn",
    4,
    2,
    4,
    outputs={"q": ("query",), "k": ("key_value",), "qkv": ("query", "key_value", "key_value")},
    inputs={"out": ("query",)},
)
ATTENTION = {"attn.q.weight": (16, 16), "attn.k.weight": (8, 16), "attn.out.weight": (16, 16)}
GOOD = {"attn.q": "colwise", "attn.k": "colwise", "attn.out": "rowwise"}


def _resolved(model: Skeleton, plan: dict[str, Any], tp: int = 2) -> ResolvedPlan:
    return resolve(model, Layout(tp=tp), plan=plan)


def _attention(**changed: object) -> ResolvedPlan:
    plan = GOOD | {f"attn.{child}": style for child, style in changed.items()}
    model = skeleton(blocks(2, ATTENTION), [HEADS])
    return _resolved(model, {f"blocks.*.{name}": style for name, style in plan.items()})


@pytest.mark.parametrize(
    ("up", "down"), [(Colwise(), Rowwise()), (PackedColwise([1, 1]), PackedRowwise([1, 1]))]
)
def test_a_style_splits_its_dimension_of_weight_and_bias(up: object, down: object) -> None:
    model = skeleton({"up.weight": (8, 4), "up.bias": (8,), "down.weight": (4, 8), "down.bias": (4,)})
    resolved = _resolved(model, {"up": up, "down": down})
    dims = {name: shard.dim for name, shard in resolved.shards.items()}
    assert dims == {"up.weight": 0, "up.bias": 0, "down.weight": 1}


@pytest.mark.parametrize(
    ("style", "name", "line"),
    [
        (
            VocabSplit(),
            "up",
            "vocab_split cannot split up.weight, a parameter of a linear module of shape [8, 4]",
        ),
        (
            Colwise(),
            "embed",
            "colwise cannot split embed.weight, a parameter of an embedding module of shape",
        ),
        (
            Rowwise(),
            "norm",
            "rowwise cannot split norm.weight, a parameter of an other module of shape [8, 4]",
        ),
    ],
)
def test_a_style_is_for_its_own_kind_of_module(style: object, name: str, line: str) -> None:
    with pytest.raises(PlanError) as caught:
        _resolved(skeleton({f"{name}.weight": (8, 4)}), {name: style})
    assert caught.value.problems[0].message.startswith(line)


def test_a_parameter_the_style_does_not_know_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"cannot split up.scale, .*; it splits weight or bias of linear modules"
    ):
        _resolved(skeleton({"up.weight": (8, 4), "up.scale": (8,)}), {"up": "colwise"})


def test_a_fault_of_every_block_is_told_once() -> None:
    with pytest.raises(PlanError) as caught:
        _resolved(skeleton(blocks(9, {"up.weight": (8, 4), "up.bias": (8,)})), {"blocks.*.up": "vocab_split"})
    assert len(caught.value.problems) == 1


def test_packed_blocks_come_from_the_style_or_from_the_layer() -> None:
    shapes: dict[str, tuple[int, ...]] = {"up.weight": (12, 6), "down.weight": (6, 12)}
    model = skeleton(shapes, blocks={"up": {0: (4, 8)}, "down": {1: (4, 8)}})
    declared = _resolved(model, {"up": "packed_colwise", "down": "packed_rowwise"}).shards
    assert declared["up.weight"].ranges(1) == declared["down.weight"].ranges(1) == ((2, 4), (8, 12))
    given = _resolved(skeleton(shapes), {"up": PackedColwise([1, 1]), "down": PackedRowwise([1, 1])}).shards
    assert given["up.weight"].ranges(0) == given["down.weight"].ranges(0) == ((0, 3), (6, 9))


@pytest.mark.parametrize(
    ("style", "line"),
    [
        (PackedColwise(), "the packed style of up has no blocks; give the proportions: [1, 1, 1]"),
        (
            PackedColwise([1, 4]),
            "blocks [1, 4] do not divide the 12 features of up; use proportions whose sum",
        ),
        (
            PackedRowwise([1, 4]),
            "blocks [1, 4] do not divide the 6 features of up; use proportions whose sum",
        ),
    ],
)
def test_packed_blocks_must_be_given_and_divide_the_layer(style: object, line: str) -> None:
    with pytest.raises(PlanError) as caught:
        _resolved(skeleton({"up.weight": (12, 6)}), {"up": style})
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("style", "line"),
    [
        (
            "colwise",
            "colwise splits up as 1, but it is made of 2 fused parts; use packed_colwise with",
        ),
        (
            PackedColwise([1, 1, 2]),
            "packed_colwise splits up as 3, but it is made of 2 fused parts; use packed_colwise",
        ),
    ],
)
def test_a_layer_that_says_it_is_fused_is_split_in_its_parts(style: object, line: str) -> None:
    model = skeleton({"up.weight": (12, 6), "down.weight": (6, 12)}, blocks={"up": {0: (4, 8)}})
    with pytest.raises(PlanError) as caught:
        _resolved(model, {"up": style, "down": PackedRowwise([4, 8])})
    assert str(caught.value).startswith(line)


def test_a_layer_with_fused_outputs_has_inputs_of_one_part() -> None:
    shapes: dict[str, tuple[int, ...]] = {"up.weight": (6, 3), "out.weight": (12, 6)}
    resolved = _resolved(skeleton(shapes, blocks={"out": {0: (4, 8)}}), {"up": "colwise", "out": "rowwise"})
    assert resolved.shards["out.weight"].ranges(1) == ((3, 6),)


@pytest.mark.parametrize("style", ["colwise", PackedColwise([1, 1])])
def test_fused_heads_are_split_in_their_parts(style: object) -> None:
    model = skeleton({"blocks.0.attn.qkv.weight": (32, 16), "blocks.0.attn.out.weight": (16, 16)}, [HEADS])
    with pytest.raises(
        PlanError, match="it is made of 3 fused parts; use packed_colwise with their proportions"
    ):
        _resolved(model, {"blocks.*.attn.qkv": style, "blocks.*.attn.out": "rowwise"})


def test_a_projection_is_not_split_as_if_it_were_fused() -> None:
    with pytest.raises(
        PlanError, match=r"packed_colwise splits blocks.0.attn.q as 2, .* of one part; use colwise"
    ):
        _attention(q=PackedColwise([1, 1]))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"q": "rowwise"},
            "rowwise splits the inputs of blocks.0.attn.q, but the heads are its outputs; use colwise",
        ),
        (
            {"out": "colwise"},
            "colwise splits the outputs of blocks.0.attn.out, but the heads are its inputs; use roww",
        ),
        (
            {"k": Colwise(gather=True)},
            "gather gives every rank all heads of blocks.0.attn.k, and its attention",
        ),
    ],
)
def test_an_attention_is_split_at_its_heads(changed: dict[str, object], line: str) -> None:
    with pytest.raises(PlanError) as caught:
        _attention(**changed)
    assert [str(problem)[: len(line)] for problem in caught.value.problems] == [line]


def test_heads_and_weights_must_agree() -> None:
    model = skeleton(blocks(1, ATTENTION | {"attn.q.weight": (12, 16)}), [HEADS])
    with pytest.raises(
        PlanError, match=r"blocks.0.attn.q has 12 features, not 4 heads of 4; the config's head"
    ):
        _resolved(model, {f"blocks.*.{name}": style for name, style in GOOD.items()})


def test_a_vocabulary_and_a_gathered_layer_may_be_of_any_size() -> None:
    model = skeleton({"embed.weight": (7, 4), "head.weight": (5, 4)})
    shards = _resolved(model, {"embed": "vocab_split", "head": Colwise(gather=True)}, tp=3).shards
    assert [shards["embed.weight"].local_size(rank) for rank in range(3)] == [3, 2, 2]
    assert [shards["head.weight"].local_size(rank) for rank in range(3)] == [2, 2, 1]
