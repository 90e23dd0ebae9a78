"""`armillary.parallelize`: a model that is already in memory, split in place, its weights where they live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from armillary.checkpoint.header import several
from armillary.checkpoint.index import CheckpointIndex, read_index
from armillary.checkpoint.locate import locate
from armillary.errors import PlanError, Problem
from armillary.layout import Layout
from armillary.models.described import hold_against
from armillary.models.registry import resolve, skeleton_of
from armillary.parallel.context_plan import refuse_context_plan
from armillary.parallel.degrees import LayoutLike, as_layout, refuse_residency
from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.forward import change_forward, restore_forward
from armillary.parallel.guards import refuse_foreign
from armillary.parallel.mesh import Mesh, build_mesh, refuse_other_mesh
from armillary.parallel.placement import Present, refuse_disk_without_checkpoint
from armillary.parallel.residency import MovedWeights
from armillary.parallel.tensor import (
    Sharding,
    install,
    note_sharding,
    place,
    refuse_unknown_modules,
    sharding_of,
)
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan
from armillary.residency import Residency


def parallelize(
    model: nn.Module,
    layout: LayoutLike,
    *,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    residency: Residency | None = None,
    prefill: bool = False,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    mesh: Mesh | None = None,
) -> nn.Module:
    """Split `model` over the ranks of `layout`, in place, and return it.

    Every rank holds the whole model when it calls this; afterwards it holds its shards, and calling the
    model on all ranks gives what the whole model gives. When nothing fits, the model stays as it was.

    A second call with the same layout and no plan changes only where the weights live and whether prompts
    are reused, so that residency may come before the split or after it.

    Args:
        model: any `nn.Module` with a plan; the same weights on every rank.
        layout: the degrees, as a `Layout` or one of diffusers' parallel configs.
        plan: replaces the registered plan; `overrides` are merged into it key by key.
        residency: where the weights of the blocks live; None: where they are. "host" keeps this rank's own
            ranges in host memory; "disk" reads them from `checkpoint` again.
        prefill: compute each prompt once and keep what generation needs of it, instead of computing it at
            every step; always on where the layout splits the sequence or weights live elsewhere.
        device: where shards and whole tensors go; None: where the model is.
        checkpoint: the folder of this very model (the one that holds its `config.json`), for weights on disk;
            a model that `armillary.load` has read knows it.
        mesh: ranks to use instead of the first `layout.world_size`, built for the same layout (see
            `build_mesh`).

    Raises:
        PlanError: the plan does not describe the model, or the model is split already, or has no values.
        LayoutError: degrees or a residency that the model or the process group cannot do.
        CheckpointError: `checkpoint` holds another model or other values.
        EngineError: the ranks hold different plans or weights.
    """
    degrees = as_layout(layout)
    refuse_other_mesh(degrees, mesh)
    _refuse_meta(model)
    refuse_foreign(model)
    before = sharding_of(model)
    # split over ranks already: the weights may move, and that is all that may change
    split = before if before and before.mesh.layout.world_size > 1 else None
    if split and (split.mesh.layout != degrees or plan or overrides or mesh not in (None, split.mesh)):
        raise _split_already(model, split)
    if split and residency is None and not prefill:
        raise _split_already(model, split)
    resolved = split.resolved if split else _resolve(model, before, degrees, plan, overrides)
    target = torch.device(device) if device is not None else _device_of(model)
    home = (residency or (before.residency if before else Residency())).on(target.type)
    prefill = prefill or (before is not None and before.prefill)
    refuse_residency(model, prefill, home)
    refuse_context_plan(model, degrees, resolved)
    index = _index(model, checkpoint) or (before.checkpoint if before else None)
    refuse_disk_without_checkpoint(home, index is not None)
    mesh = split.mesh if split else mesh or build_mesh(degrees)
    present = Present(model, resolved, mesh)
    if not split:
        _agree(present)
    # all new tensors before any is put in place: if memory runs out here, the model is untouched
    weights = present.moved(home, target, index)
    arriving = _arriving(present, weights, target if device is not None else None)
    restore_forward(model)
    for name, tensor in arriving.items():
        place(model, name, tensor)
    if not split:
        install(model, resolved, mesh, present.left_out)
    absent = present.left_out.union(weights.away if weights else ())
    note_sharding(model, Sharding(resolved, mesh, absent, home, weights, prefill, index))
    change_forward(model, resolved, mesh, prefill, weights)
    return model


def _refuse_meta(model: nn.Module) -> None:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise PlanError(
            Problem(
                "meta-weights",
                f"this {type(model).__name__} has no values to split: {several(empty, 3)} on meta",
                "armillary.load(folder) reads them; armillary.resolve(model, layout) needs none",
            )
        )


def _split_already(model: nn.Module, sharding: Sharding) -> PlanError:
    return PlanError(
        Problem(
            "already-split",
            f"this {type(model).__name__} is split over {sharding.mesh.layout} already",
            "load it again, or armillary.save it and load that; a second call with the same layout may "
            "change residency and prefill only",
        )
    )


def _resolve(
    model: nn.Module,
    before: Sharding | None,
    layout: Layout,
    plan: ParallelPlan | Mapping[str, object] | None,
    overrides: Mapping[str, object] | None,
) -> ResolvedPlan:
    # the skeleton it was loaded with knows the modules that were left out, which the plan names
    whole = before.resolved.skeleton if before and before.left_out else model
    resolved = resolve(whole, layout, plan=plan, overrides=overrides, model_class=type(model))
    refuse_unknown_modules(model, resolved)
    return resolved


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _index(model: nn.Module, checkpoint: str | Path | None) -> CheckpointIndex | None:
    """The checkpoint that was given, which must be one of this model."""
    if checkpoint is None:
        return None
    index = read_index(locate(checkpoint))
    before = sharding_of(model)
    hold_against(index, before.resolved.skeleton if before else skeleton_of(model))
    return index


def _arriving(
    present: Present, weights: MovedWeights | None, device: torch.device | None
) -> dict[str, torch.Tensor]:
    """The tensors that change: shards, what comes back, and with `device` all that goes there."""
    staying = [name for name in present if not (weights and name in weights.away)]
    arriving = {name: present.own(name) for name in staying if device is not None or present.changed(name)}
    if device is None:
        return arriving
    buffers = dict(present.model.named_buffers())  # also those that no checkpoint holds
    return {name: tensor.to(device) for name, tensor in {**buffers, **arriving}.items()}


def _agree(present: Present) -> None:
    """Ranks that made their weights themselves, with other seeds, would compute something else."""
    ranks = present.mesh.everyone
    if ranks.size > 1:
        ranks.agree("plan", {key: str(entry) for key, entry in present.resolved.plan})
        ranks.agree("weights", {name: fingerprint(present.held(name)) for name in present})
