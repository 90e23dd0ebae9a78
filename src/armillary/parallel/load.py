"""`armillary.load`: from a checkpoint to this rank's part of the model, reading nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from armillary.checkpoint.index import CheckpointIndex, read_index
from armillary.checkpoint.locate import locate
from armillary.checkpoint.stream import Wanted, read_tensors
from armillary.errors import CheckpointError, PlanError, Problem, Refusals, list_choices
from armillary.layout import Layout
from armillary.models.described import as_loaded, class_named_in, hold_against, without_ignored
from armillary.models.meta import constructed
from armillary.models.registry import family_of, known_classes, resolve, skeleton_for, skeleton_of
from armillary.parallel.collectives import Group
from armillary.parallel.context_plan import refuse_context_plan
from armillary.parallel.degrees import LayoutLike, as_layout, refuse_residency
from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.forward import change_forward
from armillary.parallel.mesh import Mesh, build_mesh, refuse_other_mesh
from armillary.parallel.placement import moved_weights, ranges_of
from armillary.parallel.tensor import Sharding, install, note_sharding, place, refuse_unknown_modules
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.skeleton import Skeleton
from armillary.progress import progress_bar
from armillary.residency import Residency


def load(
    checkpoint: str | Path | CheckpointIndex,
    *,
    subfolder: str | None = None,
    layout: LayoutLike = Layout(),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    residency: Residency | None = None,
    prefill: bool = False,
    leave_out: Collection[str] = (),
    mesh: Mesh | None = None,
    progress: bool = True,
) -> nn.Module:
    """The model of `checkpoint`, in evaluation mode, with this rank's shards and nothing more.

    Every rank reads its own ranges from the safetensors files, straight into tensors that own their
    storage; peak private memory is the shards plus a small staging buffer. What comes back is the
    library's ordinary class.

    Args:
        checkpoint: a local folder or a hub id; or what `read_index` said of one.
        subfolder: the model's folder inside it, e.g. "transformer".
        layout: the degrees, as a `Layout` or one of diffusers' parallel configs.
        dtype: of floating-point parameters; modules that the class keeps in float32 stay float32.
            None keeps each tensor's stored dtype.
        device: where the shards go; by default the rank's own device where ranks are used, else the CPU.
        plan: replaces the registered plan; `overrides` are merged into it key by key.
        mesh: ranks to use instead of the first `layout.world_size`, built for the same layout (see
            `build_mesh`).
        residency: where the weights of the blocks live; None: on the device.
        prefill: compute each prompt once and keep what generation needs of it, instead of computing it at
            every step; always on where the layout splits the sequence or weights live elsewhere.
        leave_out: modules that the task never calls (see a family's `UNUSED_BY_GENERATION`): neither read
            nor kept.
        progress: show a progress bar on the first rank (only on a terminal).

    Raises:
        CheckpointError: the folder does not hold the model its config names.
        PlanError, LayoutError: the plan does not fit the model, or the layout the plan or the ranks.
        EngineError: the ranks have different plans or checkpoints, as far as what all of them hold shows.
    """
    degrees = as_layout(layout)
    leave_out = (leave_out,) if isinstance(leave_out, str) else leave_out
    refuse_other_mesh(degrees, mesh)
    index = _index_of(checkpoint, subfolder)
    _refuse_impossible(index, dtype)
    model = build_on_meta(index, dtype)
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    index = without_ignored(index, patterns, model.state_dict())
    residency = residency or Residency()
    resolved = resolve_all(model, index, degrees, dtype, plan, overrides, prefill, residency, leave_out)
    mesh = mesh or build_mesh(degrees)
    target = torch.device(device or mesh.device())
    residency = residency.on(target.type)
    weights = moved_weights(model, index, resolved, mesh, residency, target)
    elsewhere = {*(weights.away if weights else ()), *_inside(leave_out, resolved)}
    _fill(model, index, resolved, mesh, target, progress, elsewhere)
    _agree(model, resolved, mesh.everyone, elsewhere)
    install(model, resolved, mesh)
    note_sharding(model, Sharding(resolved, mesh, frozenset(elsewhere), residency, weights, prefill, index))
    for path in leave_out:
        parent, _, child = path.rpartition(".")
        setattr(model.get_submodule(parent), child, None)
    change_forward(model, resolved, mesh, prefill, weights)
    return model.eval()


def _index_of(checkpoint: str | Path | CheckpointIndex, subfolder: str | None) -> CheckpointIndex:
    if isinstance(checkpoint, CheckpointIndex):
        return checkpoint
    return read_index(locate(checkpoint, subfolder))


def _refuse_impossible(index: CheckpointIndex, dtype: object) -> None:
    """A config that no model of its class can have, and a dtype that no weights can have."""
    refusals = Refusals()
    with refusals.collect():
        name = class_named_in(index.config, index.folder)
        if hasattr(family_of(name), "parameters"):
            skeleton_for(name, index.config)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        problem = Problem(
            "dtype", f"dtype={dtype!r} is no floating-point torch.dtype", "use torch.bfloat16, say"
        )
        refusals.add(CheckpointError, [problem])
    refusals.raise_if_any()


def build_on_meta(index: CheckpointIndex, dtype: torch.dtype | None = None) -> nn.Module:
    """The model of a checkpoint's config: parameters on meta, non-persistent buffers as always.

    Buffers such as the rotary `inv_freq` are in no checkpoint and are computed by the constructor, so
    only parameters are built on meta. `from_pretrained` runs the constructor under the dtype it is asked
    for, which decides the dtype of a buffer that names none.
    """
    from accelerate import init_empty_weights

    cls = find_class(class_named_in(index.config, index.folder), index.folder)
    with _default_dtype(dtype), init_empty_weights(include_buffers=False):
        model: nn.Module = constructed(cls, index.config)
    return model


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Within the block, new tensors have `dtype` where that is one torch can compute in."""
    before = torch.get_default_dtype()
    computable = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    torch.set_default_dtype(dtype if dtype in computable else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def find_class(name: str, folder: Path) -> Any:
    """The diffusers class called `name`.

    Raises `CheckpointError` naming the registered classes when diffusers has none.
    """
    import diffusers

    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise CheckpointError(
            Problem(
                "unknown-class",
                f"{folder}: diffusers has no model class {name}",
                f"Armillary has plans for: {list_choices(known_classes())}",
            )
        )
    return found


def resolve_all(
    model: nn.Module,
    index: CheckpointIndex,
    layout: Layout,
    dtype: torch.dtype | None,
    plan: ParallelPlan | Mapping[str, object] | None,
    overrides: Mapping[str, object] | None,
    prefill: bool,
    residency: Residency,
    leave_out: Collection[str],
) -> ResolvedPlan:
    """Everything that can be refused is refused here, at once, before a tensor is allocated; `model` is on
    meta, the rest as `load` takes it."""
    skeleton = skeleton_of(model)
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    name = str(dtype).removeprefix("torch.") if dtype is not None else None
    refusals = Refusals()
    with refusals.collect():
        hold_against(index, skeleton)
        skeleton = as_loaded(skeleton, index, name, kept)
    refusals.add(PlanError, _unknown_modules(leave_out, skeleton))
    with refusals.collect():
        refuse_residency(model, prefill, residency)
    resolved = None
    with refusals.collect():
        resolved = resolve(skeleton, layout, plan=plan, overrides=overrides, model_class=type(model))
        refuse_unknown_modules(model, resolved)
        refuse_context_plan(model, layout, resolved)
    refusals.raise_if_any()
    assert resolved is not None, "resolve neither raised nor returned"
    return resolved


def _fill(
    model: nn.Module,
    index: CheckpointIndex,
    resolved: ResolvedPlan,
    mesh: Mesh,
    device: torch.device,
    progress: bool,
    elsewhere: Collection[str],
) -> None:
    """Read this rank's ranges of every tensor but those `elsewhere` and put them in place."""
    parameters = resolved.skeleton.parameters
    wanted = {name: own for name, own in ranges_of(resolved, mesh).items() if name not in elsewhere}
    total = sum(_stored_bytes(index, name, own) for name, own in wanted.items())
    with progress_bar("Reading weights", total, unit="bytes", shown=progress and mesh.is_first) as show:

        def advance(nbytes: int) -> None:
            mesh.everyone.heartbeat.beat()  # a slow disk is no stall
            show(nbytes)

        for name, tensor in read_tensors(
            index,
            wanted,
            dtype_of=lambda name, _: getattr(torch, parameters[name].dtype),
            device=device,
            progress=advance,
        ):
            place(model, name, tensor)
    for name, buffer in model.named_buffers():
        place(model, name, buffer.to(device))
    left = {name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta}
    assert left <= set(elsewhere), f"the checkpoint was compared with the model, and yet {left} had no values"


def _unknown_modules(paths: Collection[str], skeleton: Skeleton) -> list[Problem]:
    """Modules to leave out that are not there; a slip would keep what was to go."""
    return [
        Problem("leave-out", f"leave_out names {path!r}, and {skeleton.model_class} has no such module", "")
        for path in paths
        if not any(name.startswith(f"{path}.") for name in skeleton.parameters)
    ]


def _inside(modules: Collection[str], resolved: ResolvedPlan) -> list[str]:
    """The parameters of modules and of what is in them."""
    return [n for n in resolved.skeleton.parameters if any(n.startswith(f"{path}.") for path in modules)]


def _stored_bytes(index: CheckpointIndex, name: str, own: Wanted) -> int:
    """Bytes that a rank reads of a tensor."""
    entry = index.tensors[name]
    if own is None:
        return entry.nbytes
    dim, ranges = own
    return entry.nbytes // entry.shape[dim] * sum(stop - start for start, stop in ranges)


def _agree(model: nn.Module, resolved: ResolvedPlan, ranks: Group, elsewhere: Collection[str]) -> None:
    """Machines may have checkpoints of their own. Whole tensors are compared by their bits, split ones and
    those `elsewhere` by what they are."""
    if ranks.size == 1:
        return
    ranks.agree("plan", {key: str(entry) for key, entry in resolved.plan})
    state = model.state_dict()
    parameters = resolved.skeleton.parameters.items()
    facts = {name: f"{p.dtype}{list(p.shape)}" for name, p in parameters}
    whole = [name for name in resolved.replicated if name not in elsewhere]
    ranks.agree("checkpoint", facts | {name: fingerprint(state[name]) for name in whole})
