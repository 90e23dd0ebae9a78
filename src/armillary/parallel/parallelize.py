"""`armillary.parallelize`: a model that is already in memory, split in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from armillary.errors import PlanError, Problem
from armillary.models.registry import resolve
from armillary.parallel.collectives import Group
from armillary.parallel.context import use_context
from armillary.parallel.degrees import LayoutLike, as_layout, refuse_context
from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.mesh import Mesh, build_mesh, refuse_other_mesh
from armillary.parallel.tensor import install, place, refuse_unknown_norms, sharding_of, take_ranges
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan
from armillary.residency import Residency


def parallelize(
    model: nn.Module,
    layout: LayoutLike,
    *,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    prefill: bool = False,
    mesh: Mesh | None = None,
) -> nn.Module:
    """Split `model` over the ranks of `layout`, in place, and return it.

    Every rank holds the whole model when it calls this; afterwards it holds its shards, and calling the
    model on all ranks gives what the whole model gives. When nothing fits, the model stays as it was.

    Args:
        model: any `nn.Module` with a plan; the same weights on every rank.
        layout: the degrees, as a `Layout` or one of diffusers' parallel configs.
        plan: replaces the registered plan; `overrides` are merged into it key by key.
        mesh: ranks to use instead of the first `layout.world_size`, built for the same layout (see
            `build_mesh`).
        prefill: compute each prompt once and keep what generation needs of it, instead of computing it at
            every step; always on where the layout splits the sequence.

    Raises:
        PlanError: the plan does not describe the model, or the model is split already.
        LayoutError: degrees that the model or the process group cannot do.
        EngineError: the ranks hold different plans or weights.
    """
    degrees = as_layout(layout)
    refuse_other_mesh(degrees, mesh)
    _refuse_twice(model)
    resolved = resolve(model, degrees, plan=plan, overrides=overrides)
    refuse_context(degrees, model, prefill, Residency())
    refuse_unknown_norms(model, resolved)
    mesh = mesh or build_mesh(degrees)
    _agree(model, resolved, mesh.everyone)
    for name, tensor in _local_tensors(model, resolved, mesh.tp.rank).items():
        place(model, name, tensor)
    install(model, resolved, mesh)
    use_context(model, mesh, prefill, None)
    return model


def _refuse_twice(model: nn.Module) -> None:
    sharding = sharding_of(model)
    if sharding and sharding.mesh.layout.world_size > 1:
        raise PlanError(
            Problem(
                "already-split",
                f"this {type(model).__name__} is split over {sharding.mesh.layout} already",
                "load it again, or armillary.save it and load that",
            )
        )


def _local_tensors(model: nn.Module, resolved: ResolvedPlan, tp_rank: int) -> dict[str, torch.Tensor]:
    """All shards, before any is put in place: if memory runs out here, the model is untouched."""
    state = model.state_dict()
    return {
        name: take_ranges(state[name], shard.dim, shard.ranges(tp_rank))
        for name, shard in resolved.shards.items()
    }


def _agree(model: nn.Module, resolved: ResolvedPlan, ranks: Group) -> None:
    """Ranks that made their weights themselves, with other seeds, would compute something else."""
    if ranks.size > 1:
        ranks.agree("plan", {key: str(entry) for key, entry in resolved.plan})
        ranks.agree("weights", {name: fingerprint(tensor) for name, tensor in model.state_dict().items()})
