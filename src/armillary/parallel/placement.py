"""Which of a rank's weights live elsewhere, and the sources they are read from again."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from armillary.checkpoint.index import CheckpointIndex
from armillary.checkpoint.stream import Wanted, WeightFiles, read_tensors
from armillary.models.registry import family_of
from armillary.parallel.mesh import Mesh
from armillary.parallel.residency import HostSource, Local, MovedWeights, Source
from armillary.plan.resolve import ResolvedPlan
from armillary.residency import Residency


def ranges_of(resolved: ResolvedPlan, mesh: Mesh) -> dict[str, Wanted]:
    """What this rank reads of every parameter: (dim, ranges), None for all of it."""
    shards, rank = resolved.shards, mesh.tp.rank
    return {
        name: (shard.dim, shard.ranges(rank)) if (shard := shards.get(name)) else None
        for name in resolved.skeleton.parameters
    }


def moved_weights(
    model: object,
    index: CheckpointIndex,
    resolved: ResolvedPlan,
    mesh: Mesh,
    residency: Residency,
    device: torch.device,
) -> MovedWeights | None:
    """The parameters that do not live on the device, with one host copy of those that live in host memory;
    None where all do."""
    family = family_of(model)
    away = family.moved(resolved.skeleton.parameters, residency) if family and residency.moves else {}
    if not away:
        return None
    own = ranges_of(resolved, mesh)
    locals_ = {name: _local(resolved, mesh, name) for name in away}
    files = WeightFiles(index, {name: own[name] for name in away}, device)
    hosted = {name: own[name] for name, place in away.items() if place == "host"}
    copies = read_tensors(index, hosted, dtype_of=lambda name, _: locals_[name].dtype)
    host = HostSource(copies, device)
    source = _Sources({name: host if name in hosted else files for name in away})
    return MovedWeights(locals_, source, files, residency.prefetch, device)


class _Sources:
    """Each parameter from where it lives."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        self._sources[name].read_into(name, tensor)


def _local(resolved: ResolvedPlan, mesh: Mesh, name: str) -> Local:
    dtype: torch.dtype = getattr(torch, resolved.skeleton.parameters[name].dtype)
    return Local(name, resolved.local_shape(name, mesh.tp.rank), dtype)
