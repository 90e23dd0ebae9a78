"""From a style to segments: what a split dimension consists of (fused blocks, heads, features)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from armillary.errors import PlanError, Problem, list_choices
from armillary.plan.explain import pattern_of
from armillary.plan.ranges import Segment
from armillary.plan.skeleton import HeadGroup, Parameter, Role, Skeleton
from armillary.plan.styles import Colwise, PackedColwise, PackedRowwise, Style, VocabSplit, style_name

Cut: TypeAlias = tuple[int, tuple[Segment, ...]]
"""(dimension, the segments it consists of)."""


def segments_of_all(
    skeleton: Skeleton, styles: Mapping[str, Style], groups: Mapping[str, HeadGroup], problems: list[Problem]
) -> dict[str, Cut]:
    """How every parameter that is split is divided into segments; a fault of all blocks is told once."""
    cuts: dict[str, Cut] = {}
    faults: dict[str, Problem] = {}
    for path, style in styles.items():
        for leaf, parameter in skeleton.modules[path].items():
            try:
                dim = _split_dim(path, leaf, parameter, style)
                if dim is not None:
                    cuts[f"{path}.{leaf}"] = (
                        dim,
                        _segments(path, parameter.shape[dim], style, skeleton, groups),
                    )
            except PlanError as error:
                faults.setdefault(pattern_of(path.split(".")), error.problems[0])
    problems.extend(faults.values())
    return cuts


def _split_dim(path: str, leaf: str, parameter: Parameter, style: Style) -> int | None:
    """Dimension of `parameter` that `style` cuts, None for one that stays whole."""
    if parameter.kind not in style.kinds or leaf not in style.dims:
        raise PlanError(
            Problem(
                "style-fits",
                f"{style_name(style)} cannot split {path}.{leaf}, a parameter of {_a(parameter.kind)} module "
                f"of shape {list(parameter.shape)}",
                f"it splits {list_choices(list(style.dims))} of {list_choices(style.kinds)} modules",
            )
        )
    return style.dims[leaf]


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _segments(
    path: str, size: int, style: Style, skeleton: Skeleton, groups: Mapping[str, HeadGroup]
) -> tuple[Segment, ...]:
    """The dimension of `size` as segments: fused blocks, whole heads or single features."""
    parent, _, child = path.rpartition(".")
    group = groups.get(parent)
    roles = group.roles.get(child) if group else None
    if isinstance(style, PackedColwise | PackedRowwise):
        blocks = _block_sizes(path, size, style.blocks or skeleton.blocks.get(path))
        per_block = roles if roles and len(roles) == len(blocks) else (None,) * len(blocks)
        return tuple(
            _segment(path, block, role, group) for block, role in zip(blocks, per_block, strict=True)
        )
    if roles and len(roles) > 1:
        raise PlanError(
            Problem(
                "packed-layer",
                f"{path} is fused from {len(roles)} parts, and {style_name(style)} would split it as one",
                f"use packed_{style_name(style)} with the proportions of its {len(roles)} parts",
            )
        )
    if roles and roles[0]:
        return (_segment(path, size, roles[0], group),)
    uneven = isinstance(style, VocabSplit) or (isinstance(style, Colwise) and style.gather)
    return (Segment(units=size, uneven=uneven),)


def head_segment(group: HeadGroup, role: Role) -> Segment:
    """The heads of a role as one segment; K/V heads may go to several ranks."""
    return Segment(units=group.heads(role), unit=group.head_dim, copies=role == "key_value")


def _segment(path: str, size: int, role: Role | None, group: HeadGroup | None) -> Segment:
    if role is None or group is None:
        return Segment(units=size)
    segment = head_segment(group, role)
    if size != segment.units * segment.unit:
        raise PlanError(
            Problem(
                "head-width",
                f"{path} has {size} features, not {segment.units} heads of {segment.unit}",
                "the config's head counts and the weights must agree",
            )
        )
    return segment


def _block_sizes(path: str, size: int, blocks: tuple[int, ...] | None) -> tuple[int, ...]:
    if not blocks:
        raise PlanError(
            Problem(
                "packed-blocks",
                f"the packed style of {path} has no blocks",
                "give the proportions: [1, 1, 1]",
            )
        )
    if size % sum(blocks):
        raise PlanError(
            Problem(
                "packed-blocks",
                f"blocks {list(blocks)} do not divide the {size} features of {path}",
                f"use proportions whose sum divides {size}",
            )
        )
    return tuple(block * size // sum(blocks) for block in blocks)
