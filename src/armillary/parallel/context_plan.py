"""A context plan put on a model: rows are split and gathered where it says, and attention sees all of them.

diffusers' classes say in `_cp_plan` where their sequence is split. Splits, gathers and attention are ours:
those of diffusers ask for even lengths, have no ring on the CPU and refuse tensor parallelism beside them.
The attention processors stay the library's own, on this instance with our exchange in place of its dispatch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from armillary.errors import EngineError, LayoutError, PlanError, Problem, Refusals
from armillary.layout import Layout
from armillary.models.registry import family_of
from armillary.parallel.context import Context
from armillary.parallel.degrees import CONTEXT_AXES, runs_context
from armillary.parallel.flash import refuse_backend
from armillary.parallel.inputs import facts_of
from armillary.parallel.shared_attention import DISPATCH, Counts, SharedAttention, Undo, share_attention
from armillary.plan.context import ContextInput, ContextOutput, Inputs
from armillary.plan.plan import ParallelPlan
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.styles import Optional

WRONG_PLANS: Mapping[str, str] = {
    "LTX2VideoTransformer3DModel": "leaves positions of its cross-attention whole beside rows that it splits",
}
"""Classes of diffusers (0.42.1) whose own context plan fails, and why."""


def refuse_context_plan(model: nn.Module, layout: Layout, resolved: ResolvedPlan) -> None:
    """Raise `LayoutError` or `PlanError` for context axes that a model of a diffusers family cannot run."""
    family = family_of(model)
    if not runs_context(layout) or (family is not None and family.CONTEXT):
        return
    name = type(model).__name__
    if not resolved.context.entries:
        used = {
            axis: degree for axis, degree in layout.degrees.items() if axis in CONTEXT_AXES and degree > 1
        }
        raise LayoutError(
            Problem("context-family", f"{axis}={degree}: {name} has no context plan", f"use {axis}=1")
            for axis, degree in used.items()
        )
    declared = getattr(type(model), "_cp_plan", None)
    if name in WRONG_PLANS and resolved.plan.context == ParallelPlan({}, declared).context:
        why = f"the context plan of diffusers' {name} {WRONG_PLANS[name]}"
        raise PlanError(Problem("context-wrong", why, "use tp or cfg, or give a plan with another"))
    refusals = Refusals()
    refusals.add(PlanError, [*_processor_problems(model)])
    refusals.add(LayoutError, [] if resolved.heads else [*_head_problems(model, layout)])
    if layout.ring > 1:
        for _, processor in _attentions(model):
            with refusals.collect():
                refuse_backend(processor, layout.ring)
    refusals.raise_if_any()


def _processor_problems(model: nn.Module) -> Iterator[Problem]:
    kinds = {type(processor): processor for _, processor in _attentions(model)}
    if not kinds:
        name = type(model).__name__
        yield Problem(
            "context-attention", f"{name} has no attention processors that could share rows", "use tp"
        )
    for kind, processor in kinds.items():
        call = inspect.getattr_static(kind, "__call__")
        dispatches = isinstance(call, FunctionType) and DISPATCH in call.__code__.co_names
        if not dispatches or not hasattr(processor, "_parallel_config") or "IPAdapter" in kind.__name__:
            yield Problem(
                "context-attention",
                f"{kind.__name__} computes attention by itself, over the keys of one rank",
                "use tp or cfg, or a processor that calls diffusers' dispatch_attention_fn",
            )


def _head_problems(model: nn.Module, layout: Layout) -> Iterator[Problem]:
    """Where the plan knows no heads, the attention modules may."""
    counts = {getattr(attn, "heads", None) for attn, _ in _attentions(model)}
    wrong = sorted(
        heads for heads in counts if isinstance(heads, int) and heads // layout.tp % layout.ulysses
    )
    for heads in wrong:
        yield Problem(
            "ulysses-divides",
            f"ulysses={layout.ulysses} does not divide the {heads // layout.tp} heads that a rank has at "
            f"tp={layout.tp}",
            "use gather, which has no such rule",
        )


def _attentions(model: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    """Every module with an attention processor, and that."""
    for module in model.modules():
        processor = getattr(module, "processor", None)
        if callable(processor):
            yield module, processor


def use_context_plan(model: nn.Module, context: Context, resolved: ResolvedPlan) -> Undo:
    """Put a context plan on a model, after its weights are in place. Returns what takes it back."""
    counts = Counts(context)
    undo = [_begin_with(model, counts), model.register_forward_hook(lambda *_: counts.end()).remove]
    for path, inputs in resolved.context.inputs.items():
        undo += _split_at(model.get_submodule(path), path, inputs, context)
    for path, outputs in resolved.context.outputs.items():
        gather = partial(_gather_outputs, [_inner(side) for side in outputs], context, counts)
        undo.append(model.get_submodule(path).register_forward_hook(gather).remove)
    attention = SharedAttention(context, counts)
    attentions = [*_attentions(model)]
    undo += [
        share_attention(processor, attention) for processor in {id(p): p for _, p in attentions}.values()
    ]
    undo.append(
        model.register_forward_pre_hook(
            partial(_refuse_other_processors, attentions, context.ring.size)
        ).remove
    )

    def take_back() -> None:
        for one in reversed(undo):
            one()

    return take_back


def _refuse_other_processors(
    attentions: Sequence[tuple[Any, Any]], ring: int, model: nn.Module, _: Any
) -> None:
    """A processor that was set later would see the keys of its own rank alone, and `ring` would pass over a
    backend that was."""
    for attn, processor in attentions:
        if ring > 1:
            refuse_backend(attn.processor, ring)
        if attn.processor is not processor:
            raise PlanError(
                Problem(
                    "context-processor",
                    f"{type(attn.processor).__name__} was set after {type(model).__name__} was split by rows",
                    "set processors first, then load or parallelize",
                )
            )


def _begin_with(model: nn.Module, counts: Counts) -> Undo:
    def begin(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        counts.begin(repr(facts_of(args, kwargs)))

    return model.register_forward_pre_hook(begin, with_kwargs=True).remove


def _split_at(module: nn.Module, path: str, entry: Inputs, context: Context) -> list[Undo]:
    """The hooks that split what a module is given or gives."""
    arguments = {name: _inner(side) for name, side in entry.items() if isinstance(name, str)}
    outputs = {at: _inner(side) for at, side in entry.items() if isinstance(at, int)}
    optional = {name for name, side in entry.items() if isinstance(side, Optional)}
    split = partial(_split_arguments, path, arguments, optional, context)
    undo = [module.register_forward_pre_hook(split, with_kwargs=True).remove] if arguments else []
    if outputs:
        undo.append(module.register_forward_hook(partial(_split_outputs, path, outputs, context)).remove)
    return undo


def _inner(side: Any) -> Any:
    return side.entry if isinstance(side, Optional) else side


def _split_arguments(
    path: str,
    sides: Mapping[str, ContextInput],
    optional: set[str | int],
    context: Context,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = [*inspect.signature(type(module).forward).parameters][1:]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in sides:
        if name not in given and name not in optional and name not in names:
            raise EngineError(Problem("context-argument", f"{path or 'the model'} was called without {name}"))
    split = {
        name: _own(value, sides[name], f"{name} of {path or 'the model'}", context)
        if name in sides
        else value
        for name, value in given.items()
    }
    positional = tuple(split.pop(name) for name, _ in zip(names, args, strict=False))
    return (*positional, *args[len(positional) :]), split


def _split_outputs(
    path: str, sides: Mapping[int, ContextInput], context: Context, _: nn.Module, args: Any, out: Any
) -> Any:
    outputs = [out] if isinstance(out, torch.Tensor) else list(out)
    for at, side in sides.items():
        outputs[at] = _own(outputs[at], side, f"output {at} of {path}", context)
    return outputs[0] if isinstance(out, torch.Tensor) else type(out)(outputs)


def _own(value: Any, side: ContextInput, what: str, context: Context) -> Any:
    """This rank's rows of a tensor, or of each in a list."""
    if isinstance(value, list | tuple):
        return type(value)(_own(one, side, what, context) for one in value)
    if not isinstance(value, torch.Tensor):
        return value
    if side.expected_dims is not None and value.dim() != side.expected_dims:
        if value.dim() <= side.split_dim:  # no such dimension, one value for all rows: a timestep, say
            return value
        raise EngineError(
            Problem(
                "context-dims",
                f"{what} has {value.dim()} dimensions, and the plan splits one of {side.expected_dims}",
                "the plan does not fit this model; use tp, or give a plan that does",
            )
        )
    length = value.shape[side.split_dim]
    if length < context.size:  # a rank without rows: the library's reshapes fail there, and there alone
        raise EngineError(
            Problem(
                "rows",
                f"{what} has {length} rows, too few for ring x gather x ulysses = {context.size} ranks",
                f"use at most {length} of them, or longer inputs",
            )
        )
    start, stop = context.rows(length).ranges[context.position]
    return value.narrow(side.split_dim, start, stop - start)


def _gather_outputs(
    sides: Sequence[ContextOutput],
    context: Context,
    counts: Counts,
    _: nn.Module,
    args: Any,
    out: Any,
) -> Any:
    outputs = [out] if isinstance(out, torch.Tensor) else list(out)
    for at, side in enumerate(sides):
        local, dim = outputs[at], side.gather_dim
        (rows,) = counts.of(local.shape[dim], device=local.device)
        outputs[at] = context.whole(local.movedim(dim, 0), rows).movedim(0, dim).contiguous()
    return outputs[0] if isinstance(out, torch.Tensor) else type(out)(outputs)
