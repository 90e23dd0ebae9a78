"""Head facts of attention modules that nobody has described, read from a live or meta model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from armillary.models.family import attention
from armillary.plan.skeleton import Count, HeadGroup

_COUNTS = ("heads", "num_heads", "num_attention_heads", "n_heads")
"""Attributes in which attention modules count their query heads."""


def undescribed_heads(model: Any) -> Iterator[HeadGroup]:
    """The heads of every module that counts them and projects as diffusers' attention modules do.

    A rank of a module whose projections are split has fewer heads, and a module that is not told so reshapes
    its part into as many narrower ones: numbers of the right shape that are wrong. Modules with fewer key
    and value heads count them in ways of their own and are left to a family's description.
    """
    for path, module in model.named_modules():
        counts: dict[str, Count] = {name: "query" for name in _COUNTS if _is_count(module, name)}
        query, key = (getattr(getattr(module, name, None), "out_features", 0) for name in ("to_q", "to_k"))
        heads = {vars(module)[name] for name in counts}
        if path and query and query == key and len(heads) == 1 and query % (number := heads.pop()) == 0:
            yield attention(path, number, query // number, counts=counts)


def _is_count(module: object, name: str) -> bool:
    value = vars(module).get(name)  # its own: getattr finds, and warns of, what a model's config has
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
