"""The mesh: a layout put on ranks, `tp` innermost. What a rank reads follows its mesh coordinate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

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
    device_mesh: DeviceMesh | None = None

    @property
    def tp(self) -> Group:
        """The group over which every layer's width is split."""
        return self.groups["tp"]

    @property
    def is_first(self) -> bool:
        """Whether this rank is the layout's first, the one that prints and writes."""
        return not any(self.coordinate.values())

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
        return Mesh(layout, dict.fromkeys(Layout.AXES, 0), {axis: Group(axis) for axis in Layout.AXES})
    _require_process_group(layout)
    if problems := layout.world_problems(dist.get_world_size()):
        raise LayoutError(problems)
    chosen = list(range(layout.world_size)) if ranks is None else list(ranks)
    device_mesh = DeviceMesh(
        device_type(),
        torch.tensor(chosen).view(tuple(layout.degrees.values())),
        mesh_dim_names=Layout.AXES,
    )
    if dist.get_rank() not in chosen:
        raise LayoutError(
            Problem(
                "outside-layout",
                f"rank {dist.get_rank()} is not among the ranks {chosen} of {layout}",
                f"start {layout.world_size} ranks, or raise a degree",
            )
        )
    coordinate = layout.coordinate(chosen.index(dist.get_rank()))
    groups = {
        axis: Group(axis, degree, coordinate[axis], device_mesh.get_group(axis) if degree > 1 else None)
        for axis, degree in layout.degrees.items()
    }
    return Mesh(layout, coordinate, groups, device_mesh)


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
