"""Heads of a checkpoint that no family describes: from the config's count and the widths of projections."""

from dataclasses import replace
from typing import Any

import pytest
from skeletons import Shape, blocks, skeleton

from armillary import Layout, LayoutError, Skeleton, resolve
from armillary.plan.heads import inferred_heads

LAYERS: dict[str, Shape] = {
    "attn.to_q.weight": (48, 6),
    "attn.to_k.weight": (16, 6),
    "attn.to_v.weight": (16, 6),
    "attn.to_out.0.weight": (6, 48),
    "attn.norm_q.weight": (8,),
}
PLAN: dict[str, Any] = {
    "blocks.*.attn.to_q": "colwise",
    "blocks.*.attn.to_k": "colwise",
    "blocks.*.attn.to_v": "colwise",
    "blocks.*.attn.to_out.0": "rowwise",
}


def _model(**config: object) -> Skeleton:
    model = replace(skeleton(blocks(2, LAYERS)), config=config)
    return replace(model, heads=inferred_heads(model))


def test_widths_and_the_number_of_heads_tell_the_rest() -> None:
    first, second = _model(num_attention_heads=6).heads
    assert (first.module, second.module) == ("blocks.0.attn", "blocks.1.attn")
    assert (first.query_heads, first.key_value_heads, first.head_dim) == (6, 2, 8)
    assert dict(first.outputs) == {"to_q": ("query",), "to_k": ("key_value",), "to_v": ("key_value",)}
    assert dict(first.inputs) == {"to_out.0": ("query",)}


def test_no_degree_goes_through_a_head() -> None:
    assert resolve(_model(), Layout(tp=4), plan=PLAN).local_shape("blocks.0.attn.to_q.weight", 0) == (12, 6)
    with pytest.raises(LayoutError, match=r"tp=4 does not divide the 6 query heads of Toy; use tp=1, 2 or 6"):
        resolve(_model(num_attention_heads=6), Layout(tp=4), plan=PLAN)


@pytest.mark.parametrize(
    "config", [{}, {"num_attention_heads": 5}, {"num_heads": 0}, {"heads": "6"}, {"heads": 6, "num_heads": 3}]
)
def test_where_names_and_widths_do_not_agree_nothing_is_inferred(config: dict[str, object]) -> None:
    assert _model(**config).heads == ()
