"""Which of a rank's weights live elsewhere, and the sources they are read from again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from armillary.checkpoint.index import CheckpointIndex
from armillary.checkpoint.stream import Wanted, WeightFiles, read_tensors
from armillary.errors import CheckpointError, LayoutError, Problem
from armillary.models.registry import family_of
from armillary.parallel.collectives import Group
from armillary.parallel.mesh import Mesh
from armillary.parallel.residency import HostSource, Local, MovedWeights, Source
from armillary.parallel.tensor import sharding_of, take_ranges
from armillary.plan.ranges import Range
from armillary.plan.resolve import ResolvedPlan
from armillary.residency import Elsewhere, Residency


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
    None where all do. Of a table only a prompt's rows are ever read: it stays in the files."""
    away = _places(model, resolved, residency)
    if not away:
        return None
    own = ranges_of(resolved, mesh)
    locals_ = {name: _local(resolved, mesh, name) for name in away}
    files = WeightFiles(index, {name: own[name] for name in away}, device)
    kinds = resolved.skeleton.parameters
    hosted = {n: own[n] for n, place in away.items() if place == "host" and kinds[n].kind != "embedding"}
    copies = read_tensors(index, hosted, dtype_of=lambda name, _: locals_[name].dtype)
    host = HostSource(copies, device)
    source = Sources({name: host if name in hosted else files for name in away})
    return MovedWeights(locals_, source, files, residency.prefetch, device)


class Present:
    """This rank's part of a model in memory, wherever it is now, cut as `resolved` says."""

    def __init__(self, model: nn.Module, resolved: ResolvedPlan, mesh: Mesh) -> None:
        before = sharding_of(model)
        self.left_out = before.left_out if before else frozenset()
        self.away = before.away if before else frozenset()
        self._weights = before.weights if before else None
        self._is_cut = before is not None and before.resolved is resolved
        self._state: dict[str, torch.Tensor] = model.state_dict()
        self.model, self.resolved, self.mesh = model, resolved, mesh

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def held(self, name: str) -> torch.Tensor:
        """A tensor as the model has it, read again where it lives elsewhere."""
        if self._weights is None or name not in self.away:
            return self._state[name]
        local = self._weights.away[name]
        tensor = torch.empty(local.shape, dtype=local.dtype, device=self._weights.device)
        self._weights.source.read_into(name, tensor)
        return tensor

    def own(self, name: str) -> torch.Tensor:
        """This rank's part of it; one that is whole already is not copied."""
        shard = None if self._is_cut else self.resolved.shards.get(name)
        held = self.held(name)
        return take_ranges(held, shard.dim, shard.ranges(self.mesh.tp.rank)) if shard else held

    def changed(self, name: str) -> bool:
        """Whether `own` gives another tensor than the model has."""
        return name in self.away or not (self._is_cut or name not in self.resolved.shards)

    def moved(
        self, residency: Residency, device: torch.device, index: CheckpointIndex | None
    ) -> MovedWeights | None:
        """See `moved_weights`. What shall live on disk is compared with the checkpoint: it may have been
        changed since.

        Raises:
            CheckpointError: the checkpoint holds other values.
        """
        there = _places(self.model, self.resolved, residency)
        away = {name: place for name, place in there.items() if name not in self.left_out}
        if not away:
            return None
        every = ranges_of(self.resolved, self.mesh)
        own = {name: every[name] for name in away}
        on_disk = [name for name, place in away.items() if place == "disk"]
        files = WeightFiles(index, own, device) if index and on_disk else None
        if files:
            self._refuse_other_values(files, on_disk)
        hosted = [name for name, place in away.items() if place == "host"]
        host = HostSource(((name, self.own(name)) for name in hosted), device)
        sources: dict[str, Source] = dict.fromkeys(hosted, host)
        sources |= {name: files for name in on_disk if files}
        locals_ = {
            name: Local(name, self.resolved.local_shape(name, self.mesh.tp.rank), self._state[name].dtype)
            for name in away
        }
        rows = files or HostRows(host, own, self.mesh.tp)
        return MovedWeights(locals_, Sources(sources), rows, residency.prefetch, device)

    def _refuse_other_values(self, files: WeightFiles, names: Iterable[str]) -> None:
        for name in names:
            held = self.own(name)
            stored = torch.empty_like(held, memory_format=torch.contiguous_format)
            files.read_into(name, stored)
            if not torch.equal(stored, held):
                raise CheckpointError(
                    Problem(
                        "checkpoint-values",
                        f"the checkpoint has other values for {name} than the model in memory",
                        "armillary.save the model and pass that folder, or use host",
                    )
                )


def refuse_disk_without_checkpoint(residency: Residency, has_checkpoint: bool) -> None:
    """Raise `LayoutError` where a model in memory is to be read again from a disk that it is not on."""
    if "disk" in (residency.offload, residency.evict) and not has_checkpoint:
        raise LayoutError(
            Problem(
                "residency-disk",
                "weights on disk are read again from a checkpoint, and this model is in memory only "
                "(on the CPU, where device and host are one, auto means disk)",
                "pass checkpoint=FOLDER, the one it was loaded from, or use host",
            )
        )


class Sources:
    """Each parameter from where it lives."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)

    def of(self, name: str) -> Source:
        """The source of one parameter."""
        return self._sources[name]

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """See `Source`."""
        self.of(name).read_into(name, tensor)


class HostRows:
    """Rows of tables in host memory, of which tp may have given this rank a part: all ranks of `tp` ask for
    the same rows, and each adds those it has."""

    def __init__(self, source: HostSource, ranges: Mapping[str, Wanted], tp: Group) -> None:
        self._source = source
        self._ranges = dict(ranges)
        self._tp = tp

    def read_rows(self, name: str, rows: Sequence[Range], tensor: torch.Tensor) -> None:
        """See `RowSource`."""
        table, own = self._source.tensor(name), self._ranges[name]
        if own is None:
            tensor.copy_(torch.cat([table[start:stop] for start, stop in rows]))
            return
        held = {row: at for at, row in enumerate(_each(own[1]))}
        places = [(at, held[row]) for at, row in enumerate(_each(rows)) if row in held]
        found = torch.zeros(tensor.shape, dtype=table.dtype)
        found[[at for at, _ in places]] = table[[row for _, row in places]]
        self._tp.all_reduce(tensor.copy_(found))


def _each(rows: Sequence[Range]) -> Iterator[int]:
    return (row for start, stop in rows for row in range(start, stop))


def _places(model: object, resolved: ResolvedPlan, residency: Residency) -> Mapping[str, Elsewhere]:
    """The parameters that do not live on the device, and where they live; "auto" must be settled."""
    family = family_of(model)
    return family.moved(resolved.skeleton.parameters, residency) if family and residency.moves else {}


def _local(resolved: ResolvedPlan, mesh: Mesh, name: str) -> Local:
    dtype: torch.dtype = getattr(torch, resolved.skeleton.parameters[name].dtype)
    return Local(name, resolved.local_shape(name, mesh.tp.rank), dtype)
