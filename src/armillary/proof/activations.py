"""Activations of one process, kept as a sample, and how far those of another one are from them.

The sample is every n-th index of each dimension, so that it stays small for a large model. Who compares may
hold a part: tp cuts the features of a layer, a context axis the rows; what it holds is laid beside the same
indices of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from armillary.parallel.context import Rows
from armillary.parallel.mesh import Mesh
from armillary.plan.ranges import Range
from armillary.plan.resolve import ResolvedPlan
from armillary.proof.watch import Place

_FEATURES, _OTHERS = 256, 64
"""Indices that are kept of the last dimension, and of each other one."""


@dataclass(frozen=True)
class Kept:
    """The sample of one tensor."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    sample: torch.Tensor

    @property
    def strides(self) -> tuple[int, ...]:
        """Of every dimension, each how many-th index the sample has."""
        return _strides(self.shape)


class Keeper:
    """Keeps what one process computes: a file for every call of the model."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._call = 0
        self._kept: dict[Place, Kept] = {}

    def see(self, call: int, place: Place, tensor: torch.Tensor) -> None:
        """See `watch.See`."""
        if call != self._call:
            self.write()
            self._call = call
        shape = tuple(tensor.shape)
        slices = tuple(slice(None, None, stride) for stride in _strides(shape))
        self._kept[place] = Kept(shape, tensor[slices].to("cpu", torch.float32, copy=True))

    def write(self) -> None:
        """Write the last call, too."""
        rows = [(tuple(place), kept.shape, kept.sample) for place, kept in self._kept.items()]
        torch.save(rows, _file(self._folder, self._call))
        self._kept.clear()


def places(folder: Path) -> list[tuple[int, Place]]:
    """What was kept, in the order in which it was computed."""
    return [(call, place) for call in range(len(list(folder.iterdir()))) for place in _read(folder, call)]


class Apart(NamedTuple):
    """How far a tensor is from what was kept of it, as sums that JSON and other ranks take."""

    difference: float
    """Mean square of the difference, over what was compared."""
    own: float
    """Mean square of the kept values, over what was compared."""
    whole: float
    """The same over all that was kept, so that a part of small numbers is not held against itself."""

    @property
    def relative(self) -> float:
        """Relative L2 distance; infinite where a number is none."""
        scale = max(self.own, self.whole)
        if not math.isfinite(self.difference) or not math.isfinite(scale):
            return math.inf
        return math.sqrt(self.difference / scale) if scale else math.inf if self.difference else 0.0


@dataclass
class Comparer:
    """Compares what another process computes with what was kept."""

    folder: Path
    part: Part
    calls: tuple[int, int] = (1, 0)
    """(step, first): call n here is call `step * n + first` there; a cfg rank runs one branch of two."""
    apart: dict[tuple[int, Place], Apart] = field(default_factory=dict)
    _call: int = field(default=-1, init=False)
    _kept: Mapping[Place, Kept] = field(default_factory=dict, init=False)

    def see(self, call: int, place: Place, tensor: torch.Tensor) -> None:
        """See `watch.See`; what has no counterpart is passed over."""
        step, first = self.calls
        if call != self._call:
            self._call = call
            self._kept = _read(self.folder, step * call + first)
        kept = self._kept.get(place)
        held = kept and self.part.indices(place, kept.shape, tuple(tensor.shape))
        if kept and held:
            self.apart[step * call + first, place] = _distance(tensor, kept, held)


@dataclass(frozen=True)
class Part:
    """Which part of a whole activation a rank holds."""

    features: Mapping[tuple[str, str], Sequence[Range]] = field(default_factory=dict)
    """(module, side) -> the features that this rank has of it, where tp splits them."""
    positions: int = 1
    """Over how many ranks rows lie."""
    position: int = 0

    @classmethod
    def of(cls, resolved: ResolvedPlan, mesh: Mesh) -> Part:
        """The part that a rank of `mesh` holds."""
        features = {}
        for name, shard in resolved.shards.items():
            path, _, leaf = name.rpartition(".")
            # an embedding is split by its rows, which no activation shows
            if leaf == "weight" and resolved.skeleton.parameters[name].kind != "embedding":
                features[path, "output" if shard.dim == 0 else "input"] = shard.ranges(mesh.tp.rank)
        position, positions = 0, 1
        for axis in ("ring", "gather", "ulysses"):  # outermost first, as `Context.position` counts
            group = mesh.groups[axis]
            position, positions = position * group.size + group.rank, positions * group.size
        return cls(features, positions, position)

    def indices(self, place: Place, whole: Sequence[int], local: Sequence[int]) -> list[torch.Tensor] | None:
        """For every dimension the indices of the whole that are held; None where that cannot be told."""
        if len(whole) != len(local):
            return None
        known = [None if self._shows_heads(place.module) else self._rows(size) for size in whole[:-1]]
        features = self.features.get((place.module, place.side))
        held = []
        for ranges, size, here in zip([*known, features], whole, local, strict=True):
            if (indices := _all_or(ranges, size, here)) is None:
                return None
            held.append(indices)
        return held

    @cached_property
    def _split_within(self) -> set[str]:
        """The modules that have split layers: attentions, MLPs, also whole blocks."""
        return {module.rpartition(".")[0] for module, _ in self.features} - {""}

    def _shows_heads(self, module: str) -> bool:
        """Whether a layer between split ones may have its rank's heads beside rows, such as a norm of
        queries; which heads they are is not known here."""
        split = any((module, side) in self.features for side in ("output", "input"))
        return not split and module.rpartition(".")[0] in self._split_within

    def _rows(self, size: int) -> Sequence[Range]:
        return [Rows.of(size, self.positions).ranges[self.position]]


def _all_or(ranges: Sequence[Range] | None, size: int, here: int) -> torch.Tensor | None:
    """The indices 0 to `size`, or those of `ranges`, whichever are `here` many."""
    if here == size:
        return torch.arange(size)
    if ranges is None or sum(stop - start for start, stop in ranges) != here:
        return None
    return torch.cat([torch.arange(start, stop) for start, stop in ranges or [(0, 0)]])


def _distance(tensor: torch.Tensor, kept: Kept, held: Sequence[torch.Tensor]) -> Apart:
    other = kept.sample
    for dim, (indices, stride) in enumerate(zip(held, kept.strides, strict=True)):
        at = (indices % stride == 0).nonzero().flatten()
        tensor = tensor.index_select(dim, at.to(tensor.device))
        other = other.index_select(dim, indices[at] // stride)
    expected = other.double()
    difference = tensor.to("cpu", torch.float64) - expected
    return Apart(_mean_square(difference), _mean_square(expected), _mean_square(kept.sample.double()))


def _mean_square(tensor: torch.Tensor) -> float:
    return float(tensor.square().mean()) if tensor.numel() else 0.0


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    limits = [*[_OTHERS] * (len(shape) - 1), _FEATURES][-len(shape) :] if shape else []
    return tuple(max(1, -(-size // limit)) for size, limit in zip(shape, limits, strict=True))


def _read(folder: Path, call: int) -> Mapping[Place, Kept]:
    """A call's tensors; none where that process did not make the call."""
    file = _file(folder, call)
    if not file.exists():
        return {}
    rows = torch.load(file, weights_only=True, mmap=True)
    return {Place(*place): Kept(shape, sample) for place, shape, sample in rows}


def _file(folder: Path, call: int) -> Path:
    return folder / f"call-{call}.pt"
