"""An attention module that has some of the heads: what it is told of the others is left out."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from armillary.parallel.collectives import Group
from armillary.plan.ranges import Range, Segment
from armillary.plan.resolve import LocalHeads


def take_own_heads(attention: nn.Module, heads: LocalHeads, tp: Group) -> None:
    """Make the attention module cut those arguments of its calls that hold something for every head (rotary
    angles that differ between heads, see `HeadGroup.arguments`) to the heads of this rank."""
    if not heads.arguments or heads.local_query == heads.full_query:
        return
    signature = inspect.signature(attention.forward)
    own = Segment(units=heads.full_query).run(tp.rank, tp.size)

    def cut(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        bound = signature.bind(*args, **kwargs)
        for name, dim in heads.arguments.items():
            if name in bound.arguments:
                bound.arguments[name] = _own(bound.arguments[name], dim, own, heads.full_query)
        return bound.args, bound.kwargs

    attention.register_forward_pre_hook(cut, with_kwargs=True)


def _own(value: Any, dim: int, own: Range, heads: int) -> Any:
    """The part of a tensor, or of each in a tuple, that belongs to heads `own`; None stays None."""
    if isinstance(value, tuple | list):
        return type(value)(_own(one, dim, own, heads) for one in value)
    if not isinstance(value, torch.Tensor):
        return value
    width, rest = divmod(value.shape[dim], heads)
    assert not rest, f"{value.shape[dim]} values are not those of {heads} heads"
    start, stop = own
    return value.narrow(dim, start * width, (stop - start) * width)
