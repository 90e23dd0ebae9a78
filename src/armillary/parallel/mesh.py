"""The mesh: a layout put on ranks, `tp` innermost. What a rank reads follows its mesh coordinate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from armillary.errors import LayoutError, Problem
from armillary.layout import Layout
from armillary.parallel.collectives import Group
from armillary.parallel.device import backend, device_for, device_type

_START_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Mesh:
    """A layout on ranks, as one rank sees it: its coordinate and a group per axis."""

    layout: Layout
    coordinate: Mapping[str, int]
    groups: Mapping[str, Group]
    everyone: Group
    """All ranks of the layout."""
    device_mesh: DeviceMesh | None = None

    @property
    def tp(self) -> Group:
        """The group over which every layer's width is split."""
        return self.groups["tp"]

    @property
    def is_first(self) -> bool:
        """Whether this rank is the layout's first, the one that prints and writes."""
        return not any(self.coordinate.values())

    def traffic(self) -> dict[str, int]:
        """Bytes that this rank has sent on every axis so far; see `Traffic`."""
        return {axis: group.traffic.nbytes for axis, group in self.groups.items()}

    def device(self) -> torch.device:
        """Where this rank's shards belong: the CPU for one process alone, as diffusers loads."""
        if self.device_mesh is None:
            return torch.device("cpu")
        return device_for(int(os.environ.get("LOCAL_RANK", dist.get_rank())))


def build_mesh(layout: Layout, ranks: Sequence[int] | None = None) -> Mesh:
    """Put `layout` on `ranks` (global numbers, in mesh order; by default the first `world_size`).

    All ranks of the process group must call it. An existing process group is used; otherwise one is
    started from torchrun's environment. A layout of one rank needs neither.

    Raises `LayoutError` when there are fewer ranks than the layout has, and on the ranks outside it.
    """
    if layout.world_size == 1:
        alone = {axis: Group(axis) for axis in Layout.AXES}
        return Mesh(layout, dict.fromkeys(Layout.AXES, 0), alone, Group("world"))
    _require_process_group(layout)
    chosen = list(range(layout.world_size)) if ranks is None else list(ranks)
    if problems := _rank_problems(layout, chosen, dist.get_world_size()):
        raise LayoutError(problems)
    # an axis of one rank needs no process group
    used = {axis: degree for axis, degree in layout.degrees.items() if degree > 1}
    device_mesh = DeviceMesh(
        device_type(), torch.tensor(chosen).view(tuple(used.values())), mesh_dim_names=tuple(used)
    )
    of_all: Any = dist.new_group(chosen)
    if dist.get_rank() not in chosen:
        raise LayoutError(
            Problem(
                "outside-layout",
                f"rank {dist.get_rank()} is not among the ranks {chosen} of {layout}",
                f"start {layout.world_size} ranks, or raise a degree",
            )
        )
    place = {rank: layout.coordinate(position) for position, rank in enumerate(chosen)}
    coordinate = place[dist.get_rank()]
    groups = {axis: Group(axis) for axis in Layout.AXES}
    for axis, degree in used.items():
        members = tuple(r for r in chosen if {**place[r], axis: 0} == {**coordinate, axis: 0})
        groups[axis] = Group(axis, degree, coordinate[axis], device_mesh.get_group(axis), members)
    everyone = Group("world", len(chosen), chosen.index(dist.get_rank()), of_all, tuple(chosen))
    return Mesh(layout, coordinate, groups, everyone, device_mesh)


def refuse_other_mesh(layout: Layout, mesh: Mesh | None) -> None:
    """Raise `LayoutError` when `mesh` was built for another layout, so that shards and ranks differ."""
    if mesh is not None and mesh.layout != layout:
        raise LayoutError(
            Problem(
                "mesh-layout",
                f"the layout is {layout} and the mesh was built for {mesh.layout}",
                "pass layout=mesh.layout",
            )
        )


def _rank_problems(layout: Layout, chosen: Sequence[int], available: int) -> list[Problem]:
    if problems := layout.world_problems(available):
        return problems
    if len(set(chosen)) == len(chosen) == layout.world_size and set(chosen) <= set(range(available)):
        return []
    return [
        Problem(
            "mesh-ranks",
            f"{list(chosen)} are not {layout.world_size} different ranks of a group of {available}",
            f"give as many of 0 to {available - 1} as {layout} has",
        )
    ]


def _require_process_group(layout: Layout) -> None:
    if dist.is_initialized():
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise LayoutError(
            Problem(
                "process-group",
                f"{layout} needs {layout.world_size} ranks and this is one process",
                f"start it with `torchrun --nproc-per-node {layout.world_size}`, or use `armillary generate`",
            )
        )
    dist.init_process_group(backend(), timeout=_START_TIMEOUT)
