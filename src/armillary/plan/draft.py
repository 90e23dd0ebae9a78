"""A first draft of a plan, from the names that the field gives its layers; `check` says what it misses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from armillary.plan.explain import key_of
from armillary.plan.projections import fused_roles, is_input, is_output
from armillary.plan.skeleton import Skeleton, tree_of

_MLP: tuple[tuple[str, Any], ...] = (
    (r"gate_proj|up_proj|w1|w3|fc1|linear_in|net\.0\.proj", "colwise"),
    (r"gate_up_proj", {"packed_colwise": [1, 1]}),
    (r"down_proj|w2|fc2|linear_out|net\.2", "rowwise"),
)
"""What the end of a path says of an MLP's layer; those of attention are in `projections`."""

EXAMPLE: Mapping[str, Any] = {"blocks.*.attn.to_q": "colwise", "blocks.*.attn.to_out.0": "rowwise"}
"""What a plan looks like, for a model whose layers are not known."""


def drafted(layers: Iterable[str]) -> dict[str, Any]:
    """Plan key to style, as JSON, for the layers of blocks that are called as the field calls them.

    Args:
        layers: module paths.
    """
    layers = list(layers)
    tree = tree_of(layers)
    keys = dict.fromkeys(key_of(path, tree) for path in layers)
    found = {key: _style(key) for key in keys if "*" in key}
    return {key: style for key, style in found.items() if style is not None}


def drafted_for(skeleton: Skeleton) -> dict[str, Any]:
    """The draft for the linear layers of a skeleton."""
    linear = [
        path for path, owned in skeleton.modules.items() if any(p.kind == "linear" for p in owned.values())
    ]
    return drafted(linear)


def _style(key: str) -> Any:
    parts = key.split(".")
    for child in (".".join(parts[-length:]) for length in range(1, min(len(parts), 4))):
        if fused := fused_roles(child):
            return {"packed_colwise": [1] * len(fused)}
        if is_input(child):
            return "colwise"
        if is_output(child):
            return "rowwise"
        for pattern, style in _MLP:
            if re.fullmatch(pattern, child):
                return style
    return None
