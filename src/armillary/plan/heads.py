"""Head facts of a model whose class nobody describes, from what the field calls layers and counts.

A live model's modules count their heads themselves; headers show no modules, so that a config says how many
there are. The widths of the projections tell the rest. Where they do not agree nothing is inferred.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from armillary.errors import Problem
from armillary.plan.explain import key_of
from armillary.plan.projections import (
    Children,
    attentions,
    fused_roles,
    is_input,
    is_norm,
    is_output,
    leaves_parts,
    role_of,
)
from armillary.plan.skeleton import Count, HeadGroup, Role, Skeleton
from armillary.plan.styles import Style

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "heads")
"""Settings of a config that count query heads."""
_ATTRIBUTES: Mapping[Count, re.Pattern[str]] = {
    "query": re.compile(r"((num|n)_)?((local|attention|attn|query|q)_)*heads?"),
    "key_value": re.compile(r"((num|n)_)?((local|attention|attn)_)*(key_value|kv|key|k)_heads?"),
    "queries_per_key_value": re.compile(r"(num|n)_(key_value|kv)_groups|n_rep"),
}
"""Attributes in which attention modules count heads."""
_LIKE_A_COUNT = re.compile(r"(?!full_)(?!.*(dim|size|channels)).*(heads|head$)")
"""Attributes that count heads in some way; `full_` are what a split leaves beside them."""

Roles: TypeAlias = tuple[Role | None, ...]


def counted_heads(model: Any) -> dict[str, dict[str, int]]:
    """Path of every module of a live model that counts heads -> attribute to number."""
    found = {path: dict(_counts(module)) for path, module in model.named_modules()}
    return {path: counts for path, counts in found.items() if counts}


def _counts(module: object) -> Iterator[tuple[str, int]]:
    for name, value in vars(module).items():  # its own: getattr finds, and warns of, what a config has
        if type(value) is int and value > 0 and (_count_of(name) or _LIKE_A_COUNT.fullmatch(name)):
            yield name, value


def _count_of(attribute: str) -> Count | None:
    return next((count for count, names in _ATTRIBUTES.items() if names.fullmatch(attribute)), None)


def inferred_heads(skeleton: Skeleton) -> tuple[HeadGroup, ...]:
    """The head facts of every attention module that can be understood."""
    groups = (_group(path, children, skeleton) for path, children in attentions(skeleton).items() if path)
    return tuple(group for group in groups if group is not None)


def uncounted_problems(
    skeleton: Skeleton, styles: Mapping[str, Style], groups: Mapping[str, HeadGroup]
) -> Iterator[Problem]:
    """Attention that counts heads in ways that are not understood, and is split by columns.

    Told of no smaller number, it would reshape its part into as many narrower heads: numbers of the right
    shape that are wrong. `groups` are those that are told, by path.
    """
    told = [path for path, group in groups.items() if group.counts]
    for path, style in styles.items():
        parent, _, child = path.rpartition(".")
        owner = _nearest(parent, skeleton.counted)
        if owner is None or not leaves_parts(style) or not (owner == parent or is_input(child)):
            continue
        if not any(_is_in(module, owner) for module in told):
            name, counts = key_of(owner, skeleton.tree) or "the model", skeleton.counted[owner]
            listed = ", ".join(f"{attribute}={number}" for attribute, number in counts.items())
            yield Problem(
                "heads-unknown",
                f"{name} counts heads ({listed}), is split by columns, and how its layers go with that is "
                "not known",
                "give its class the field's names, to_q, to_k and to_v or q_proj, k_proj and v_proj, counted "
                "in num_heads and num_key_value_heads, or leave its layers whole",
            )


def _nearest(path: str, counted: Collection[str]) -> str | None:
    """`path` or the closest module around it that counts heads."""
    while path and path not in counted:
        path = path.rpartition(".")[0]
    return path if path in counted else None


def _is_in(path: str, owner: str) -> bool:
    return not owner or f"{path}.".startswith(f"{owner}.")


def _group(path: str, children: Children, skeleton: Skeleton) -> HeadGroup | None:
    """The facts of one attention module, None where the number of heads does not go with its widths."""
    counted = skeleton.counted.get(path, {})
    said = {value for name, value in counted.items() if _count_of(name) == "query"}
    if not counted:
        said = {skeleton.config[name] for name in _HEADS if skeleton.config.get(name) is not None}
    query, key_value = _widths(children, "query"), _widths(children, "key_value")
    if not len(said) == len(query) == len(key_value) == 1:
        return None
    (full,), (wide,), (narrow,) = said, query, key_value
    if type(full) is not int or full < 1 or wide % full or narrow % (wide // full):
        return None
    head_dim = wide // full
    key_value_heads = narrow // head_dim
    if full % key_value_heads or (counts := _told(counted, full, key_value_heads)) is None:
        return None
    return HeadGroup(
        module=path,
        query_heads=full,
        key_value_heads=key_value_heads,
        head_dim=head_dim,
        outputs=dict(_outputs(children, wide, narrow, head_dim)),
        inputs=dict(_inputs(path, children, wide, skeleton)),
        counts=counts,
    )


def _told(counted: Mapping[str, int], query: int, key_value: int) -> dict[str, Count] | None:
    """What each attribute counts, None where one is not understood or fewer K/V heads are not counted."""
    numbers = {"query": query, "key_value": key_value, "queries_per_key_value": query // key_value}
    counts = {name: count for name in counted if (count := _count_of(name))}
    if any(name not in counts or numbers[counts[name]] != value for name, value in counted.items()):
        return None
    return None if counted and key_value != query and {*counts.values()} == {"query"} else counts


def _widths(children: Children, role: Role) -> set[int]:
    projections = (owned for child, owned in children.items() if role_of(child) == role)
    return {owned["weight"].shape[0] for owned in projections if "weight" in owned}


def _outputs(children: Children, query: int, key_value: int, head_dim: int) -> Iterator[tuple[str, Roles]]:
    """Projections to heads, and norms that go over all of them and not over each."""
    roles: Mapping[int, Role] = {key_value: "key_value", query: "query"}
    for child, owned in children.items():
        role = role_of(child)
        if is_norm(child) and "weight" in owned and (width := owned["weight"].shape[0]) != head_dim:
            role = roles.get(width)
        if several := fused_roles(child) or (role and (role,)):
            yield child, several


def _inputs(path: str, children: Children, query: int, skeleton: Skeleton) -> Iterator[tuple[str, Roles]]:
    """Projections from heads; one that says that it takes something beside them is counted part by part."""
    for child, owned in children.items():
        if is_output(child) and "weight" in owned:
            parts = skeleton.blocks.get(f"{path}.{child}", {}).get(1) or (owned["weight"].shape[1],)
            if parts[0] == query:
                yield child, ("query", *(None for _ in parts[1:]))
