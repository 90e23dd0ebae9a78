"""Attention over the rows of all ranks, in the place of diffusers' dispatch, on a model's processors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

import torch

from armillary.errors import EngineError, Problem
from armillary.parallel.context import Context, Rows
from armillary.plan.ranges import Segment

DISPATCH = "dispatch_attention_fn"
"""What diffusers' attention processors call, by its name in their module."""
KEPT_SHAPES = 16
"""Different shapes of inputs for which the counts of rows are kept."""

Undo: TypeAlias = Callable[[], None]


class Counts:
    """How many rows every position has, at each place of a forward where rows are joined.

    A rank knows its own alone: what reaches an attention may be several sequences, one after another. So
    counts are told, in the first forward with inputs of some shape, and known in the later ones. Ranks that
    compute together have inputs of the same shapes (`compare_inputs`): all of them know, or all of them ask.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: OrderedDict[Hashable, list[tuple[tuple[int, ...], ...]]] = OrderedDict()
        self._shapes: Hashable = None
        self._now: list[tuple[tuple[int, ...], ...]] = []
        self._place = 0

    def begin(self, shapes: Hashable) -> None:
        """A forward begins, with inputs of these shapes."""
        self._shapes, self._now, self._place = shapes, list(self._known.get(shapes, ())), 0

    def end(self) -> None:
        """The forward has ended. One that raised half way, on each rank at another place, leaves nothing: the
        next one asks again, on all of them."""
        self._known[self._shapes] = self._now
        self._known.move_to_end(self._shapes)
        while len(self._known) > KEPT_SHAPES:
            self._known.popitem(last=False)

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


def share_attention(processor: Any, attention: SharedAttention) -> Undo:
    """Give one processor our attention where its class dispatches.

    The class is left as it is: the instance gets one of its own, with the same code, in which one name means
    something else.
    """
    kind, before = type(processor), processor._parallel_config
    stock = kind.__call__

    def dispatch(*args: Any, parallel_config: Any = None, **kwargs: Any) -> torch.Tensor:
        if parallel_config is None:  # keys that no rank has split: those of a prompt that all have in full
            out: torch.Tensor = stock.__globals__[DISPATCH](*args, **kwargs)
            return out
        return attention(*args, **kwargs)

    names = {**stock.__globals__, DISPATCH: dispatch}
    call = FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    call.__kwdefaults__ = stock.__kwdefaults__
    call.__annotations__ = stock.__annotations__
    processor.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    processor._parallel_config = attention

    def undo() -> None:
        processor.__class__, processor._parallel_config = kind, before

    return undo
