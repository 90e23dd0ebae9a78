"""A first draft of a plan, from the names that the field gives its layers; `check` says what it misses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from armillary.plan.explain import key_of
from armillary.plan.skeleton import Skeleton, tree_of

_LAYERS: tuple[tuple[str, Any], ...] = (
    (r"(to_|add_|w)?(q|k|v|query|key|value)(_proj|_t)?", "colwise"),
    (r"(to_|add_)?(added_)?qkv(_proj)?", {"packed_colwise": [1, 1, 1]}),
    (r"(to_|add_)?(added_)?kv(_proj)?", {"packed_colwise": [1, 1]}),
    (r"to_out(_t|\.0)?|to_add_out|o_proj|out_proj|wo", "rowwise"),
    (r"gate_proj|up_proj|w1|w3|fc1|linear_in|net\.0\.proj", "colwise"),
    (r"gate_up_proj", {"packed_colwise": [1, 1]}),
    (r"down_proj|w2|fc2|linear_out|net\.2", "rowwise"),
)
"""What the end of a path says of the layer: most of the field's attention and MLP blocks."""

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
    for pattern, style in _LAYERS:
        if re.search(rf"\.({pattern})$", key):
            return style
    return None
