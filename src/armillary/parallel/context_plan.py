"""A context plan put on a model: rows are split and gathered where it says, and attention sees all of them.

diffusers' classes say in `_cp_plan` where their sequence is split. Splits, gathers and attention are ours:
those of diffusers ask for even lengths, have no ring on the CPU and refuse tensor parallelism beside them.
The attention processors stay the library's own, on this instance with our exchange in place of its dispatch.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import nn

from armillary.errors import EngineError, LayoutError, PlanError, Problem, Refusals
from armillary.layout import Layout
from armillary.models.registry import family_of
from armillary.parallel.context import Context, Rows
from armillary.parallel.degrees import CONTEXT_AXES, runs_context
from armillary.parallel.flash import refuse_backend
from armillary.parallel.inputs import facts_of
from armillary.plan.context import ContextInput, ContextOutput, Inputs
from armillary.plan.plan import ParallelPlan
from armillary.plan.ranges import Segment
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.styles import Optional

_DISPATCH = "dispatch_attention_fn"
"""What diffusers' attention processors call, by its name in their module."""
WRONG_PLANS: Mapping[str, str] = {
    "LTX2VideoTransformer3DModel": "leaves positions of its cross-attention whole beside rows that it splits",
}
"""Classes of diffusers (0.42.1) whose own context plan fails, and why."""
KEPT_SHAPES = 16
"""Different shapes of inputs for which the counts of rows are kept."""

Undo: TypeAlias = Callable[[], None]


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
        dispatches = isinstance(call, FunctionType) and _DISPATCH in call.__code__.co_names
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
    undo = [_begin_with(model, counts)]
    for path, inputs in resolved.context.inputs.items():
        undo += _split_at(model.get_submodule(path), path, inputs, context)
    for path, outputs in resolved.context.outputs.items():
        gather = partial(_gather_outputs, [_inner(side) for side in outputs], context, counts)
        undo.append(model.get_submodule(path).register_forward_hook(gather).remove)
    attention = SharedAttention(context, counts)
    attentions = [*_attentions(model)]
    undo += [_shared(processor, attention) for processor in {id(p): p for _, p in attentions}.values()]
    undo.append(model.register_forward_pre_hook(partial(_refuse_other_processors, attentions)).remove)

    def take_back() -> None:
        for one in reversed(undo):
            one()

    return take_back


class Counts:
    """How many rows every position has, at each place of a forward where rows are joined.

    A rank knows its own alone: what reaches an attention may be several sequences, one after another. So
    counts are told, in the first forward with inputs of some shape, and known in the later ones. Ranks that
    compute together have inputs of the same shapes (`compare_inputs`): all of them know, or all of them ask.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: OrderedDict[Hashable, list[tuple[tuple[int, ...], ...]]] = OrderedDict()
        self._now: list[tuple[tuple[int, ...], ...]] = []
        self._place = 0

    def begin(self, shapes: Hashable) -> None:
        """A forward begins, with inputs of these shapes."""
        self._now = self._known.setdefault(shapes, [])
        self._known.move_to_end(shapes)
        while len(self._known) > KEPT_SHAPES:
            self._known.popitem(last=False)
        self._place = 0

    def of(self, *here: int, device: torch.device) -> tuple[Rows, ...]:
        """Where the rows of some sequences lie, of which this rank has as many as it says."""
        if self._place == len(self._now):
            inner = self._context.ulysses.tell(here, device)
            flat = [count for counts in inner for count in counts]
            told = [count for counts in self._context.outer.tell(flat, device) for count in counts]
            self._now.append(tuple(tuple(told[at :: len(here)]) for at in range(len(here))))
        everyone = self._now[self._place]
        self._place += 1
        mine = tuple(counts[self._context.position] for counts in everyone)
        assert mine == here, f"{here} rows where this place of the forward had {mine}"
        return tuple(Rows.of_counts(counts) for counts in everyone)


@dataclass(frozen=True, eq=False)
class SharedAttention:
    """Stands as `_parallel_config` in a processor, and computes what it would have dispatched."""

    context: Context
    counts: Counts

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        attention_kwargs: dict[str, Any] | None = None,
        *,
        backend: Any = None,
    ) -> torch.Tensor:
        """[batch, rows here, heads, size] each -> the same as `query`, over the keys of all ranks."""
        if is_causal or dropout_p:
            raise _cannot("causal attention" if is_causal else f"dropout_p={dropout_p}")
        heads, ulysses = query.shape[2], self.context.ulysses
        if heads % ulysses.size:
            raise _cannot(f"{heads} heads on a rank, which ulysses={ulysses.size} does not divide")
        rows, key_rows = self.counts.of(query.shape[1], key.shape[1], device=query.device)
        mask = None if attn_mask is None else self._mask(attn_mask, heads, key.shape[1], key_rows)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            from diffusers.models.attention_dispatch import dispatch_attention_fn

            out: torch.Tensor = dispatch_attention_fn(
                *(x.permute(2, 0, 1, 3) for x in (query, key, value)),
                attn_mask=mask,
                scale=scale,
                enable_gqa=enable_gqa or query.shape[1] != key.shape[1],
                attention_kwargs=attention_kwargs,
                backend=backend,
            )
            return out.permute(1, 2, 0, 3)

        # a part of the keys with none that is not masked has no log-sum-exp
        context = self.context if mask is None else self.context.without_ring()
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = context.attention(q, k, v, None, rows, attend, key_rows=key_rows, scale=scale)
        return out.permute(2, 0, 1, 3)

    def _mask(self, mask: torch.Tensor, heads: int, keys: int, rows: Rows) -> torch.Tensor:
        """The mask of all keys from that of this rank's: [batch or 1, heads or 1, 1, keys]."""
        if mask.dim() != 4 or mask.shape[2] != 1 or mask.shape[3] != keys:
            raise _cannot(f"an attention mask of shape {list(mask.shape)}, which tells queries apart,")
        if mask.shape[1] == heads > 1:
            start, stop = Segment(units=heads).run(self.context.ulysses.rank, self.context.ulysses.size)
            mask = mask[:, start:stop]
        sent = mask.to(torch.uint8) if mask.dtype == torch.bool else mask
        return self.context.whole(sent.movedim(3, 0), rows).movedim(0, 3).to(mask.dtype)


def _cannot(what: str) -> EngineError:
    fix = "use tp or cfg for this model"
    return EngineError(
        Problem("context-attention", f"{what} cannot be computed over rows on several ranks", fix)
    )


def _shared(processor: Any, attention: SharedAttention) -> Undo:
    """Give one processor our attention where its class dispatches.

    The class is left as it is: the instance gets one of its own, with the same code, in which one name means
    something else.
    """
    kind, before = type(processor), processor._parallel_config
    stock = kind.__call__

    def dispatch(*args: Any, parallel_config: Any = None, **kwargs: Any) -> torch.Tensor:
        if parallel_config is None:  # keys that no rank has split: those of a prompt that all have in full
            out: torch.Tensor = stock.__globals__[_DISPATCH](*args, **kwargs)
            return out
        return attention(*args, **kwargs)

    names = {**stock.__globals__, _DISPATCH: dispatch}
    call = FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    call.__kwdefaults__ = stock.__kwdefaults__
    call.__annotations__ = stock.__annotations__
    processor.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    processor._parallel_config = attention

    def undo() -> None:
        processor.__class__, processor._parallel_config = kind, before

    return undo


def _refuse_other_processors(attentions: Sequence[tuple[Any, Any]], model: nn.Module, _: Any) -> None:
    """A processor that was set later would see the keys of its own rank alone."""
    for attn, processor in attentions:
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
