"""How much of a model's blocks a plan splits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from armillary.plan.explain import pattern_of
from armillary.plan.resolve import ResolvedPlan

_IN_BLOCK = re.compile(r"\w+\.\d+\..+\.weight")
"""A layer of a list that is a child of the model itself; not of a `ModuleList` deeper down."""


def split_fraction(resolved: ResolvedPlan) -> float:
    """Share of the bytes of linear weights inside blocks that are split, 1.0 for a model without blocks."""
    nbytes = {name: resolved.skeleton.parameters[name].nbytes for name in _linear_in_blocks(resolved)}
    split = sum(size for name, size in nbytes.items() if name in resolved.shards)
    return split / sum(nbytes.values()) if nbytes else 1.0


def whole_layers(resolved: ResolvedPlan) -> list[str]:
    """Linear layers inside blocks that no rank shares, with `*` for block numbers."""
    whole = (name for name in _linear_in_blocks(resolved) if name not in resolved.shards)
    return sorted({pattern_of(name.rpartition(".")[0]) for name in whole})


def _linear_in_blocks(resolved: ResolvedPlan) -> Iterator[str]:
    for name, parameter in resolved.skeleton.parameters.items():
        if parameter.kind == "linear" and _IN_BLOCK.fullmatch(name):
            yield name
