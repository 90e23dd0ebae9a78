"""Head facts of a checkpoint whose class nobody describes, from what the field calls layers and counts.

Headers show no attention modules, so that its config says how many heads there are, and the widths of its
projections how large they are. Where the two do not agree nothing is inferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from armillary.plan.projections import Children, attentions, is_norm, is_output, role_of
from armillary.plan.skeleton import HeadGroup, Role, Skeleton

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "heads")
"""Settings of a config that count query heads."""

Roles: TypeAlias = tuple[Role | None, ...]


def inferred_heads(skeleton: Skeleton) -> tuple[HeadGroup, ...]:
    """The head facts of every attention module that can be understood."""
    counts = {skeleton.config.get(name) for name in _HEADS} - {None}
    full = counts.pop() if len(counts) == 1 else None
    if type(full) is not int or full < 1:
        return ()
    groups = (_group(path, children, skeleton, full) for path, children in attentions(skeleton).items())
    return tuple(group for group in groups if group is not None)


def _group(path: str, children: Children, skeleton: Skeleton, full: int) -> HeadGroup | None:
    """The facts of one attention module, None where the number of heads does not go with its widths."""
    query, key_value = _widths(children, "query"), _widths(children, "key_value")
    if len(query) != 1 or len(key_value) != 1:
        return None
    (wide,), (narrow,) = query, key_value
    head_dim, rest = divmod(wide, full)
    if rest or narrow % head_dim or full % (narrow // head_dim):
        return None
    return HeadGroup(
        module=path,
        query_heads=full,
        key_value_heads=narrow // head_dim,
        head_dim=head_dim,
        outputs=dict(_outputs(children, wide, narrow)),
        inputs=dict(_inputs(path, children, wide, skeleton)),
    )


def _widths(children: Children, role: Role) -> set[int]:
    projections = (owned for child, owned in children.items() if role_of(child) == role)
    return {owned["weight"].shape[0] for owned in projections if "weight" in owned}


def _outputs(children: Children, query: int, key_value: int) -> Iterator[tuple[str, Roles]]:
    """Projections to heads, and norms that go over all of them."""
    roles: Mapping[int, Role] = {key_value: "key_value", query: "query"}
    for child, owned in children.items():
        role = role_of(child)
        if role is None and is_norm(child) and "weight" in owned:
            role = roles.get(owned["weight"].shape[0])
        if role is not None:
            yield child, (role,)


def _inputs(path: str, children: Children, query: int, skeleton: Skeleton) -> Iterator[tuple[str, Roles]]:
    """Projections from heads; one that says that it takes something beside them is counted part by part."""
    for child, owned in children.items():
        if is_output(child) and "weight" in owned:
            parts = skeleton.blocks.get(f"{path}.{child}", {}).get(1) or (owned["weight"].shape[1],)
            if parts[0] == query:
                yield child, ("query", *(None for _ in parts[1:]))
