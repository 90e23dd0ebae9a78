"""The property behind everything: over random models, plans and layouts the shards are the model again.

Every dimension is covered exactly once (or its copies are named), every rank has whole query heads with
exactly the key/value heads they attend to, and the shards put back together are the original bytes.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings, strategies as st
from numpy.typing import NDArray
from random_models import CASES, LEGAL, SUPER, Model

from armillary import Layout, LayoutError, ResolvedPlan, resolve

Array = NDArray[np.int64]


def _resolved(model: Model, layout: Layout) -> ResolvedPlan:
    return resolve(model.skeleton, layout, plan=model.plan)


def _weights(model: Model) -> Iterator[tuple[str, Array]]:
    """Values that are all different, so that a row in the wrong place shows."""
    start = 0
    for name, parameter in model.skeleton.parameters.items():
        size = int(np.prod(parameter.shape))
        yield name, np.arange(start, start + size).reshape(parameter.shape)
        start += size


def _features(resolved: ResolvedPlan, name: str, tp_rank: int) -> list[int]:
    """Which features of the split dimension one rank holds, in local order."""
    ranges = resolved.shards[name].ranges(tp_rank)
    return [feature for start, stop in ranges for feature in range(start, stop)]


@settings(deadline=None, max_examples=100)
@given(CASES)
@example((SUPER, 16))
@example((SUPER, 3))
def test_a_degree_is_accepted_exactly_where_heads_and_widths_allow_it(case: tuple[Model, int]) -> None:
    model, tp = case
    try:
        _resolved(model, Layout(tp=tp))
        accepted = True
    except LayoutError:
        accepted = False
    assert accepted == model.allows(tp)


@settings(deadline=None, max_examples=100)
@given(LEGAL)
@example((SUPER, 16))
def test_the_shards_put_back_together_are_the_original_bytes(case: tuple[Model, int]) -> None:
    model, tp = case
    resolved = _resolved(model, Layout(tp=tp))
    for name, whole in _weights(model):
        if (shard := resolved.shards.get(name)) is None:
            assert tp == 1 or name in resolved.replicated
            continue
        again, holders = np.full_like(whole, -1), np.zeros(shard.size, dtype=int)
        for rank in range(tp):
            features = _features(resolved, name, rank)
            local = whole.take(features, shard.dim)
            assert local.shape == resolved.local_shape(name, rank)
            np.moveaxis(again, shard.dim, 0)[features] = np.moveaxis(local, shard.dim, 0)
            holders[features] += 1
        assert again.tobytes() == whole.tobytes()
        copies = {1, tp // model.key_value_heads} if shard.copied else {1}
        assert {*holders.tolist()} <= copies


@settings(deadline=None, max_examples=100)
@given(LEGAL)
@example((SUPER, 16))
def test_every_rank_has_whole_query_heads_and_exactly_the_keys_they_attend_to(
    case: tuple[Model, int],
) -> None:
    model, tp = case
    resolved = _resolved(model, Layout(tp=tp))
    for rank in range(tp if tp > 1 else 0):
        query, key, value = _attention_features(model, resolved, rank)
        heads = _whole_heads(query, model.head_dim)
        attended = {head * model.key_value_heads // model.query_heads for head in heads}
        assert _whole_heads(key, model.head_dim) == _whole_heads(value, model.head_dim) == sorted(attended)
        counts = resolved.heads["blocks.0"]
        assert (counts.local_query, counts.local_key_value) == (len(heads), len(attended))
        outputs = _features(resolved, "blocks.0.out.weight", rank)
        assert [feature for feature in outputs if feature < model.query] == query


@settings(deadline=None, max_examples=40)
@given(LEGAL)
def test_an_mlp_goes_on_with_the_features_it_has(case: tuple[Model, int]) -> None:
    model, tp = case
    resolved = _resolved(model, Layout(tp=tp))
    last, before = ("out", model.query) if model.joined else ("down", 0)
    for rank in range(tp if tp > 1 else 0):
        made = _features(resolved, "blocks.0.up.weight", rank)
        taken = _features(resolved, f"blocks.0.{last}.weight", rank)
        wanted = [feature - before for feature in taken if feature >= before]
        assert made == [gate * model.mlp + feature for gate in range(model.gates) for feature in wanted]


def _attention_features(
    model: Model, resolved: ResolvedPlan, rank: int
) -> tuple[list[int], list[int], list[int]]:
    """Local features of query, key and value, each counted from its own beginning."""
    if not model.fused:
        query, key, value = (_features(resolved, f"blocks.0.{name}.weight", rank) for name in "qkv")
        return query, key, value
    fused = _features(resolved, "blocks.0.qkv.weight", rank)
    ends = [0, model.query, model.query + model.key_value, model.query + 2 * model.key_value]
    query, key, value = ([f - a for f in fused if a <= f < b] for a, b in pairwise(ends))
    return query, key, value


def _whole_heads(features: list[int], head_dim: int) -> list[int]:
    """Heads that the features are made of; they are whole and in order."""
    heads = sorted({feature // head_dim for feature in features})
    assert features == [head * head_dim + offset for head in heads for offset in range(head_dim)]
    return heads


@settings(deadline=None, max_examples=40)
@given(LEGAL, st.sampled_from([1, 2]), st.integers(1, 3))
def test_a_rank_holds_what_its_tp_coordinate_says(case: tuple[Model, int], cfg: int, gather: int) -> None:
    model, tp = case
    layout = Layout(cfg=cfg, gather=gather, tp=tp)
    resolved = _resolved(model, layout)
    assert resolved.shards == _resolved(model, Layout(tp=tp)).shards
    for position in range(layout.world_size):
        rank = layout.coordinate(position)["tp"]
        shapes = [resolved.local_shape(name, rank) for name in model.skeleton.parameters]
        assert resolved.bytes_on(rank) == sum(4 * int(np.prod(shape)) for shape in shapes)
