"""Tensor parallelism on plain local tensors: shards in the same modules, a reduce where halves meet.

The modules stay the library's own `nn.Linear` and `nn.Embedding` instances. A column-split layer runs
its stock forward on fewer outputs; only the layers whose output must be joined get a forward of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from armillary.errors import PlanError, Problem
from armillary.parallel.collectives import Group
from armillary.parallel.guards import guard, log_skipped, whole_processors
from armillary.parallel.heads import take_own_heads
from armillary.parallel.mesh import Mesh
from armillary.parallel.norms import joined_norm
from armillary.plan.explain import pattern_of
from armillary.plan.ranges import Range, Shard
from armillary.plan.resolve import LocalHeads, ResolvedPlan
from armillary.plan.styles import Colwise, NormSplit, PackedRowwise, Rowwise, Style, VocabSplit, style_name
from armillary.residency import Residency

if TYPE_CHECKING:
    from armillary.checkpoint.index import CheckpointIndex
    from armillary.parallel.residency import MovedWeights

_MARK = "_armillary_sharding"


@dataclass(frozen=True)
class Sharding:
    """What was done to a model: the resolved plan and the mesh it was put on."""

    resolved: ResolvedPlan
    mesh: Mesh
    absent: frozenset[str] = frozenset()
    """Parameters that are not in the model: left out, or living elsewhere."""
    residency: Residency = field(default_factory=Residency)
    weights: MovedWeights | None = None
    """Those that live elsewhere, and where they are read again; None: none do."""
    prefill: bool = False
    """Whether each prompt is computed once also where nothing asks for it."""
    checkpoint: CheckpointIndex | None = None
    """Where the model was read from, as far as it is known."""

    @property
    def left_out(self) -> frozenset[str]:
        """Parameters that are nowhere: of modules that the task never calls."""
        return self.absent - self.away

    @property
    def away(self) -> frozenset[str]:
        """Parameters that live elsewhere."""
        return frozenset(self.weights.away if self.weights else ())


def sharding_of(model: nn.Module) -> Sharding | None:
    """How a model was sharded by Armillary, None for an ordinary one."""
    return getattr(model, _MARK, None)


def note_sharding(model: nn.Module, sharding: Sharding) -> None:
    """Remember on the model what was done to it, and guard it against what it cannot do any more."""
    if sharding_of(model) is None and sharding.mesh.is_first:
        log_skipped(sharding.resolved)
    setattr(model, _MARK, sharding)
    guard(model, sharding)


def take_ranges(tensor: torch.Tensor, dim: int, ranges: Sequence[Range]) -> torch.Tensor:
    """The ranges of `tensor` along `dim`, one after another, in storage of their own."""
    # more ranks than rows: no ranges, and a part of size 0
    parts = [tensor.narrow(dim, start, stop - start) for start, stop in ranges or [(0, 0)]]
    # clone, not a view: a slice of the whole would keep the whole alive
    return parts[0].clone(memory_format=torch.contiguous_format) if len(parts) == 1 else torch.cat(parts, dim)


def slot_of(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Where the parameter or buffer `name` of `model` is kept: the module's own dictionary, and the key."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    return (owner._buffers if leaf in owner._buffers else owner._parameters), leaf


def place(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Make `tensor` the parameter or buffer `name` of `model`; a frozen parameter stays frozen."""
    slots, leaf = slot_of(model, name)
    before = slots[leaf]
    if isinstance(before, nn.Parameter):
        trains = before.requires_grad and tensor.is_floating_point()
        tensor = nn.Parameter(tensor, requires_grad=trains)
    slots[leaf] = tensor


def refuse_unknown_modules(model: nn.Module, resolved: ResolvedPlan) -> None:
    """Raise `PlanError` for split modules that no formula is known for; before anything is changed."""
    problems = [
        problem
        for path, module in model.named_modules()
        if (style := resolved.styles.get(path)) and (shard := resolved.shards.get(f"{path}.weight"))
        for problem in _unknown(pattern_of(path), module, style, shard)
    ]
    problems += whole_processors(model, resolved.shards)
    if problems:
        raise PlanError(problems)


def _unknown(pattern: str, module: nn.Module, style: Style, shard: Shard) -> Iterator[Problem]:
    name, kind = style_name(style), type(module).__name__
    joined = _joining_forward(module, style, shard, Group("tp"))
    if isinstance(style, NormSplit) and joined is None:
        what = f"{name} of {pattern} does not know how {kind} computes"
        yield Problem("norm-kind", what, "it knows torch's RMSNorm and LayerNorm, and those of diffusers")
    elif joined and isinstance(module, nn.Linear | nn.Embedding):
        stock = nn.Linear.forward if isinstance(module, nn.Linear) else nn.Embedding.forward
        if type(module).forward is not stock:
            what = f"{name} of {pattern} would pass over the forward that {kind} has of its own"
            yield Problem("layer-kind", what, "leave it whole, or give it torch's forward")
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        what = f"{name} of {pattern}: max_norm={module.max_norm} changes rows by what a rank has of them"
        yield Problem(
            "layer-kind", what, "leave it whole, or apply max_norm to its weight and set it to None"
        )


def install(model: nn.Module, resolved: ResolvedPlan, mesh: Mesh, left_out: Collection[str] = ()) -> None:
    """Make a model whose parameters are already this rank's shards compute what the whole one does.

    `left_out` are parameters whose modules are not there.
    """
    for path, style in resolved.styles.items():
        if f"{path}.weight" in left_out:
            continue
        module = model.get_submodule(path)
        shard = resolved.shards.get(f"{path}.weight")
        if shard is not None:
            _note_sizes(module, shard, mesh.tp.rank)
            if forward := _joining_forward(module, style, shard, mesh.tp):
                module.forward = forward
    for path, heads in resolved.heads.items():
        _set_local_heads(model.get_submodule(path), heads)
        take_own_heads(model.get_submodule(path), heads, mesh.tp)
    if resolved.shards:
        # the reduces are not differentiable, so a backward pass fails cleanly instead of being wrong
        model.requires_grad_(False)


def _joining_forward(module: nn.Module, style: Style, shard: Shard, tp: Group) -> Callable[..., Any] | None:
    """The forward of a module whose output the ranks must join, None where the stock one is right."""
    if isinstance(module, nn.Embedding) and isinstance(style, VocabSplit):
        (rows,) = shard.ranges(tp.rank) or ((0, 0),)
        return partial(_look_up_own_rows, module, tp, rows, shard.size)
    if isinstance(style, NormSplit):
        return joined_norm(module, tp, sum(shard.local_size(rank) for rank in range(tp.size)))
    if isinstance(module, nn.Linear) and isinstance(style, Rowwise | PackedRowwise):
        return partial(_reduce_output, module, tp)
    if isinstance(module, nn.Linear) and isinstance(style, Colwise) and style.gather:
        sizes = [shard.local_size(rank) for rank in range(tp.size)]
        return partial(_gather_output, module, tp, sizes)
    return None


def _reduce_output(linear: nn.Linear, tp: Group, x: torch.Tensor) -> torch.Tensor:
    out = tp.all_reduce(F.linear(x, linear.weight))
    # after the reduce: inside F.linear every rank would add it once
    return out if linear.bias is None else out.add_(linear.bias)


def _look_up_own_rows(
    embedding: nn.Embedding, tp: Group, rows: Range, full_rows: int, ids: torch.Tensor
) -> torch.Tensor:
    start, stop = rows
    if start == stop:  # more ranks than rows
        return tp.all_reduce(embedding.weight.new_zeros(*ids.shape, embedding.weight.shape[1]))
    elsewhere = ((ids >= 0) & (ids < start)) | ((ids >= stop) & (ids < full_rows))
    # ids outside the vocabulary are left in, so that the lookup refuses them as that of a whole layer does
    out = F.embedding((ids - start).masked_fill(elsewhere, 0), embedding.weight)
    return tp.all_reduce(out.masked_fill_(elsewhere.unsqueeze(-1), 0))


def _gather_output(linear: nn.Linear, tp: Group, sizes: Sequence[int], x: torch.Tensor) -> torch.Tensor:
    return tp.all_gather(F.linear(x, linear.weight, linear.bias), sizes, dim=-1)


def _note_sizes(module: nn.Module, shard: Shard, tp_rank: int) -> None:
    """Local sizes where torch keeps them, the full ones readable beside them."""
    local = shard.local_size(tp_rank)
    if isinstance(module, nn.Linear | nn.Embedding):
        embeds = isinstance(module, nn.Embedding)
        sizes = ("num_embeddings", "embedding_dim") if embeds else ("out_features", "in_features")
        _set_beside(module, sizes[shard.dim], local)
    else:  # a norm: torch calls its size normalized_shape, diffusers dim
        attribute = "normalized_shape" if hasattr(module, "normalized_shape") else "dim"
        _set_beside(module, attribute, torch.Size([local]))


def _set_local_heads(attention: nn.Module, heads: LocalHeads) -> None:
    """Local head counts on the attention module, so that its stock processor reshapes rightly."""
    for attribute, count in heads.counts.items():
        _set_beside(attention, attribute, heads.local(count))


def _set_beside(module: nn.Module, attribute: str, local: int | torch.Size) -> None:
    full = getattr(module, attribute)
    setattr(module, f"full_{attribute}", full)
    setattr(module, attribute, local)
