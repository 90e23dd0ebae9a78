"""What is taken where a layout is asked for: a `Layout`, or diffusers' own parallel configs."""

from __future__ import annotations

from typing import Any, TypeAlias

from armillary.errors import LayoutError, Problem
from armillary.layout import Layout
from armillary.models.registry import family_of
from armillary.residency import Residency

LayoutLike: TypeAlias = Any
"""A `Layout`, or a diffusers `TensorParallelConfig`, `ContextParallelConfig` or `ParallelConfig`."""


def as_layout(value: LayoutLike) -> Layout:
    """The `Layout` that `value` means; diffusers' configs are recognised by their class names.

    Raises `LayoutError` for anything else.
    """
    if isinstance(value, Layout):
        return value
    name = type(value).__name__
    if name == "TensorParallelConfig":
        return Layout(tp=value.tp_degree if value.mesh is None else _size_of_first_ranks(value.mesh))
    if name == "ContextParallelConfig":
        return Layout(ring=value.ring_degree or 1, ulysses=value.ulysses_degree or 1)
    if name == "ParallelConfig":
        parts = [value.context_parallel_config, value.tensor_parallel_config]
        layouts = [as_layout(part) for part in parts if part is not None]
        return Layout(**{axis: max([1, *(part.degrees[axis] for part in layouts)]) for axis in Layout.AXES})
    raise LayoutError(
        Problem(
            "layout-type",
            f"{value!r} is not a layout",
            "pass armillary.Layout(tp=...) or a diffusers TensorParallelConfig",
        )
    )


def _size_of_first_ranks(device_mesh: Any) -> int:
    """The size of a config's own DeviceMesh, which must lie where a `Layout` would."""
    ranks = device_mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise LayoutError(
            Problem(
                "config-mesh",
                f"the config's mesh is on ranks {ranks}, and a layout is put on the first {len(ranks)}",
                f"pass layout=Layout(tp={len(ranks)}) and mesh=build_mesh(layout, {ranks})",
            )
        )
    return len(ranks)


CONTEXT_AXES = ("ring", "gather", "ulysses")


def runs_context(layout: Layout) -> bool:
    """Whether the layout splits the sequence."""
    return any(layout.degrees[axis] > 1 for axis in CONTEXT_AXES)


def refuse_context(layout: Layout, model: object, prefill: bool, residency: Residency) -> None:
    """Raise `LayoutError` for context axes, prefill or a residency that a model's family cannot run.

    `model` is a model, a class or a class name.
    """
    family = family_of(model)
    if family is not None and family.CONTEXT:
        return
    name = model if isinstance(model, str) else type(model).__name__
    problems = [
        Problem("context-family", f"{axis}={degree}: {name} has no context plan", f"use {axis}=1")
        for axis, degree in layout.degrees.items()
        if axis in CONTEXT_AXES and degree > 1
    ]
    if prefill:
        problems.append(
            Problem("prefill-family", f"{name} has no prompt to compute once", "use prefill=False")
        )
    if residency.moves:
        problems.append(
            Problem("residency-family", f"{name} has no blocks that could live elsewhere", "use Residency()")
        )
    if problems:
        raise LayoutError(problems)
