"""From a style to segments: what a split dimension consists of (fused blocks, heads, features)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from armillary.errors import PlanError, Problem, list_choices
from armillary.plan.explain import pattern_of
from armillary.plan.ranges import Segment
from armillary.plan.skeleton import HeadGroup, Parameter, Role, Skeleton
from armillary.plan.styles import Colwise, PackedColwise, PackedRowwise, Style, VocabSplit, style_name

Cut: TypeAlias = tuple[int, tuple[Segment, ...]]
"""(dimension, the segments it consists of)."""

# by dimension of a linear weight: what lies along it, and the style that splits it
_SIDES = ("outputs", "inputs")
_STYLES = ("colwise", "rowwise")


@dataclass(frozen=True)
class _Layer:
    """A module with a style, and what is known of it."""

    path: str
    style: Style
    blocks: Mapping[int, tuple[int, ...]]
    """Dimension -> the fused blocks that the module declares itself."""
    group: HeadGroup | None
    """Set where the module is a projection of an attention module."""
    child: str
    """Its name in that attention module."""


def segments_of_all(
    skeleton: Skeleton, styles: Mapping[str, Style], groups: Mapping[str, HeadGroup], problems: list[Problem]
) -> dict[str, Cut]:
    """How every parameter that is split is divided into segments; a fault of all blocks is told once."""
    projections = {
        f"{path}.{child}": (group, child) for path, group in groups.items() for child in group.projections
    }
    cuts: dict[str, Cut] = {}
    faults: dict[str, Problem] = {}
    for path, style in styles.items():
        layer = _Layer(path, style, skeleton.blocks.get(path, {}), *projections.get(path, (None, "")))
        for leaf, parameter in skeleton.modules[path].items():
            try:
                dim = _split_dim(layer, leaf, parameter)
                if dim is not None:
                    cuts[f"{path}.{leaf}"] = (dim, _segments(layer, dim, parameter.shape[dim]))
            except PlanError as error:
                faults.setdefault(pattern_of(path), error.problems[0])
    problems.extend(faults.values())
    return cuts


def head_segment(group: HeadGroup, role: Role) -> Segment:
    """The heads of a role as one segment; K/V heads may go to several ranks."""
    return Segment(units=group.heads(role), unit=group.head_dim, copies=role == "key_value")


def _split_dim(layer: _Layer, leaf: str, parameter: Parameter) -> int | None:
    """Dimension of `parameter` that the layer's style cuts, None for one that stays whole."""
    style = layer.style
    if parameter.kind not in style.kinds or leaf not in style.dims:
        raise PlanError(
            Problem(
                "style-fits",
                f"{style_name(style)} cannot split {layer.path}.{leaf}, a parameter of "
                f"{_a(parameter.kind)} module of shape {list(parameter.shape)}",
                f"it splits {list_choices(list(style.dims))} of {list_choices(style.kinds)} modules",
            )
        )
    return style.dims[leaf]


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _segments(layer: _Layer, dim: int, size: int) -> tuple[Segment, ...]:
    """The `size` features of a dimension as segments: fused blocks, whole heads or single features."""
    style, declared, roles = layer.style, layer.blocks.get(dim), _roles(layer, dim)
    sizes: tuple[int, ...] = (size,)
    if isinstance(style, PackedColwise | PackedRowwise):
        sizes = _block_sizes(layer.path, size, style.blocks or declared)
    parts = len(roles or declared or sizes)
    if parts != len(sizes):
        made_of = f"{parts} fused parts" if parts > 1 else "one part"
        fix = f"packed_{_STYLES[dim]} with their proportions" if parts > 1 else _STYLES[dim]
        raise PlanError(
            Problem(
                "fused-parts",
                f"{style_name(style)} splits {layer.path} as {len(sizes)}, but it is made of {made_of}",
                f"use {fix}",
            )
        )
    uneven = isinstance(style, VocabSplit) or (isinstance(style, Colwise) and style.gather)
    return tuple(
        _head_segment(layer, part, role) if role else Segment(units=part, uneven=uneven)
        for part, role in zip(sizes, roles or (None,) * parts, strict=True)
    )


def _roles(layer: _Layer, dim: int) -> tuple[Role | None, ...] | None:
    """What the dimension of a projection is counted in; None for a layer without heads."""
    if layer.group is None:
        return None
    roles = (layer.group.outputs, layer.group.inputs)[dim].get(layer.child)
    if roles is None:
        raise PlanError(
            Problem(
                "heads-style",
                f"{style_name(layer.style)} splits the {_SIDES[dim]} of {layer.path}, "
                f"but the heads are its {_SIDES[1 - dim]}",
                f"use {_STYLES[1 - dim]}",
            )
        )
    if isinstance(layer.style, Colwise) and layer.style.gather:
        raise PlanError(
            Problem(
                "heads-style",
                f"gather gives every rank all heads of {layer.path}, and its attention expects its own",
                "use colwise without gather",
            )
        )
    return roles


def _head_segment(layer: _Layer, size: int, role: Role) -> Segment:
    assert layer.group is not None, "only a projection has roles"
    segment = head_segment(layer.group, role)
    if size != segment.units * segment.unit:
        raise PlanError(
            Problem(
                "head-width",
                f"{layer.path} has {size} features, not {segment.units} heads of {segment.unit}",
                "the config's head counts and the weights must agree",
            )
        )
    return segment


def _block_sizes(path: str, size: int, blocks: tuple[int, ...] | None) -> tuple[int, ...]:
    """Sizes of fused blocks, from their proportions."""
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
