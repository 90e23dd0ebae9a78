"""Head facts of attention modules that no family describes."""

from typing import Any

import pytest
import torch
from torch import nn

from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.models.registry import resolve

PLAN = {f"blocks.*.attn.{name}": "colwise" for name in ("to_q", "to_k", "to_v")} | {
    "blocks.*.attn.to_out.0": "rowwise"
}


def model(keys: int = 24, **counts: int) -> Any:
    """One attention of width 24 that counts its heads in `counts`."""
    with torch.device("meta"):
        attn = nn.Module()
        attn.to_q, attn.to_k, attn.to_v = nn.Linear(24, 24), nn.Linear(24, keys), nn.Linear(24, keys)
        attn.to_out = nn.ModuleList([nn.Linear(24, 24), nn.Dropout()])
    for name, count in counts.items():
        setattr(attn, name, count)
    block, whole = nn.Module(), nn.Module()
    block.attn = attn
    whole.blocks = nn.ModuleList([block])
    return whole


def test_a_module_that_counts_its_heads_is_told_how_many_a_rank_has() -> None:
    heads = resolve(model(heads=4), Layout(tp=2), plan=PLAN).heads["blocks.0.attn"]
    assert (heads.local_query, heads.head_dim, dict(heads.counts)) == (2, 6, {"heads": "query"})


def test_a_degree_that_would_cut_a_head_is_refused() -> None:
    with pytest.raises(LayoutError, match="does not divide the 4 query heads"):
        resolve(model(num_heads=4), Layout(tp=3), plan=PLAN)


@pytest.mark.parametrize(
    "whole", [model(), model(keys=12, heads=4), model(heads=4, num_heads=8), model(heads=5)]
)
def test_what_is_not_certain_is_not_guessed(whole: Any) -> None:
    assert resolve(whole, Layout(), plan=PLAN).heads == {}
