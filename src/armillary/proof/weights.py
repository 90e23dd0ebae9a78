"""Weights and buffers of the ranks, held bit for bit against those of one process, by their fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.mesh import Mesh
from armillary.parallel.tensor import sharding_of, take_ranges
from armillary.plan.resolve import ResolvedPlan

Prints = Mapping[str, Sequence[str]]
"""Parameter or buffer -> its fingerprint on every tp rank, or the one that all of them have."""


def expected_prints(model: nn.Module, resolved: ResolvedPlan) -> Prints:
    """What the ranks of `resolved` should hold of a whole model."""
    return {name: _on_every_rank(name, tensor, resolved) for name, tensor in _tensors(model).items()}


def _on_every_rank(name: str, tensor: torch.Tensor, resolved: ResolvedPlan) -> list[str]:
    shard = resolved.shards.get(name)
    if shard is None:
        return [fingerprint(tensor)]
    ranks = range(resolved.layout.tp)
    return [fingerprint(take_ranges(tensor.detach(), shard.dim, shard.ranges(rank))) for rank in ranks]


def differing(model: nn.Module, mesh: Mesh, expected: Prints) -> dict[str, str]:
    """What this rank holds otherwise than it should: name -> "bits", "dtype" or "shape". What lives
    elsewhere, or was left out, is not looked at."""
    sharding = sharding_of(model)
    absent = sharding.absent if sharding else frozenset()
    found = {}
    for name, tensor in _tensors(model).items():
        prints = expected.get(name, [""])
        wanted = prints[mesh.tp.rank % len(prints)]
        if name not in absent and (own := fingerprint(tensor)) != wanted:
            found[name] = _difference(own, wanted)
    return found


def dtypes_of_whole(model: nn.Module) -> dict[str, str]:
    """The dtypes of what every rank has in full: parameters that are not split, and buffers."""
    sharding = sharding_of(model)
    shards = sharding.resolved.shards if sharding else {}
    return {
        name: str(tensor.dtype).removeprefix("torch.")
        for name, tensor in _tensors(model).items()
        if name not in shards
    }


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _difference(own: str, wanted: str) -> str:
    facts, wanted_facts = own.partition("#")[0], wanted.partition("#")[0]
    if facts == wanted_facts:
        return "bits"
    return "shape" if facts.partition("[")[0] == wanted_facts.partition("[")[0] else "dtype"
