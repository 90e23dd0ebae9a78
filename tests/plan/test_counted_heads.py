"""Head facts of attention modules that no family describes: what a live model's modules count themselves."""

from typing import Any

import pytest
import torch
from torch import nn

from armillary.errors import LayoutError, PlanError
from armillary.layout import Layout
from armillary.models.registry import resolve

DIFFUSERS = ("to_q", "to_k", "to_v", "to_out")
NAMINGS = [DIFFUSERS, ("q_proj", "k_proj", "v_proj", "o_proj"), ("wq", "wk", "wv", "wo")]


def plan(names: tuple[str, ...] = DIFFUSERS) -> dict[str, Any]:
    styles = ("colwise",) * (len(names) - 1)
    return {f"blocks.*.attn.{name}": style for name, style in zip(names, (*styles, "rowwise"), strict=True)}


def model(keys: int = 24, names: tuple[str, ...] = DIFFUSERS, **counts: int) -> Any:
    """One attention of width 24 that counts its heads in `counts`."""
    with torch.device("meta"):
        attn = nn.Module()
        for name, width in zip(names, (24, keys, keys, 24) if len(names) == 4 else (72, 24), strict=True):
            setattr(attn, name, nn.Linear(24, width))
    for name, count in counts.items():
        setattr(attn, name, count)
    block, whole = nn.Module(), nn.Module()
    block.attn = attn
    whole.blocks = nn.ModuleList([block])
    return whole


@pytest.mark.parametrize("names", NAMINGS)
def test_a_module_that_counts_its_heads_is_told_how_many_a_rank_has(names: tuple[str, ...]) -> None:
    heads = resolve(model(names=names, heads=4), Layout(tp=2), plan=plan(names)).heads["blocks.0.attn"]
    assert (heads.local_query, heads.head_dim, dict(heads.counts)) == (2, 6, {"heads": "query"})


@pytest.mark.parametrize(
    ("count", "name", "local"),
    [(2, "num_key_value_heads", 1), (2, "n_kv_heads", 1), (2, "num_key_value_groups", 2), (2, "n_rep", 2)],
)
def test_fewer_key_and_value_heads_are_counted_too(count: int, name: str, local: int) -> None:
    whole = model(12, DIFFUSERS, num_heads=4, **{name: count})
    heads = resolve(whole, Layout(tp=2), plan=plan()).heads["blocks.0.attn"]
    assert {name: heads.local(what) for name, what in heads.counts.items()} == {"num_heads": 2, name: local}


def test_a_degree_that_would_cut_a_head_is_refused() -> None:
    with pytest.raises(LayoutError, match="does not divide the 4 query heads"):
        resolve(model(num_heads=4), Layout(tp=3), plan=plan())


@pytest.mark.parametrize(
    "whole",
    [
        model(keys=12, heads=4),
        model(heads=4, num_heads=8),
        model(heads=5),
        model(heads=4, rope_heads=4),
        model(keys=12, num_heads=4, num_kv_heads=4),
    ],
)
def test_what_is_not_certain_is_not_guessed_but_refused(whole: Any) -> None:
    assert resolve(whole, Layout(), plan=plan()).heads == {}
    with pytest.raises(PlanError, match=r"blocks\.\*\.attn counts heads \((num_)?heads=\d.*not known; give"):
        resolve(whole, Layout(tp=2), plan=plan())


def test_one_fused_projection_is_refused_and_may_stay_whole() -> None:
    whole = model(names=("qkv", "proj"), num_heads=4)
    split = {"blocks.*.attn.qkv": {"packed_colwise": [1, 1, 1]}, "blocks.*.attn.proj": "rowwise"}
    with pytest.raises(PlanError, match=r"counts heads \(num_heads=4\), is split by columns"):
        resolve(whole, Layout(tp=2), plan=split)
    assert not resolve(whole, Layout(tp=2), plan={}).shards
