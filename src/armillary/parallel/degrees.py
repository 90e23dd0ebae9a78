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
        return _context_layout(value)
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


def _context_layout(config: Any) -> Layout:
    """`ulysses_anything`, `ring_anything` ask for what is always done here: lengths need not divide.
    `rotate_method` is how diffusers passes keys round, and changes no result."""
    layout = Layout(ring=config.ring_degree or 1, ulysses=config.ulysses_degree or 1)
    problems = []
    if not config.convert_to_fp32:
        why = "convert_to_fp32=False, but the parts of a ring's attention are merged in float32"
        problems.append(Problem("config-merge", why, "leave convert_to_fp32 as it is"))
    if config.mesh is not None:
        names, sizes = config.mesh.mesh_dim_names or (), config.mesh.mesh.shape
        given = {name: size for name, size in zip(names, sizes, strict=False) if size > 1}
        asked = {axis: degree for axis, degree in layout.degrees.items() if degree > 1}
        if [*given.items()] != [*asked.items()]:
            why = f"the config's mesh has {given}, and its degrees are {asked}"
            fix = f"pass a Layout and mesh=build_mesh(layout), whose order is {', '.join(Layout.AXES)}"
            problems.append(Problem("config-mesh", why, fix))
        else:
            _size_of_first_ranks(config.mesh)
    if problems:
        raise LayoutError(problems)
    return layout


def _size_of_first_ranks(device_mesh: Any) -> int:
    """The size of a config's own DeviceMesh, which must lie where a `Layout` would."""
    ranks = device_mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise LayoutError(
            Problem(
                "config-mesh",
                f"the config's mesh is on ranks {ranks}, and a layout is put on the first {len(ranks)}",
                f"pass a Layout of {len(ranks)} ranks and mesh=build_mesh(layout, {ranks})",
            )
        )
    return len(ranks)


CONTEXT_AXES = ("ring", "gather", "ulysses")


def runs_context(layout: Layout) -> bool:
    """Whether the layout splits the sequence."""
    return any(layout.degrees[axis] > 1 for axis in CONTEXT_AXES)


def refuse_residency(model: object, prefill: bool, residency: Residency) -> None:
    """Raise `LayoutError` for a prefill or a residency that a model's family cannot run.

    `model` is a model, a class or a class name.
    """
    family = family_of(model)
    if family is not None and family.CONTEXT:
        return
    name = model if isinstance(model, str) else type(model).__name__
    problems = []
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
