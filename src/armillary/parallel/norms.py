"""Norms over features that are split: each rank has some of them, the mean is taken over all.

A query norm "across heads" sees every head's features at once, and a rank holds only its own heads. The
statistics of a row are a number or two, so joining them costs little beside the projections around them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from armillary.parallel.collectives import Group

Forward: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def joined_norm(norm: nn.Module, tp: Group, full_size: int) -> Forward | None:
    """The forward of a norm that holds this rank's part of `full_size` features; None for a norm whose
    formula is not known here.

    Args:
        full_size: features of all ranks together; where heads are held by several ranks, each copy counts.
    """
    formulas: dict[Any, Callable[..., torch.Tensor]] = {
        nn.RMSNorm.forward: _torch_rms_norm,
        nn.LayerNorm.forward: _layer_norm,
        _diffusers("RMSNorm", norm): _diffusers_rms_norm,
        _diffusers("FP32LayerNorm", norm): _layer_norm,
    }
    formula = formulas.get(type(norm).forward)
    return partial(formula, norm, tp, full_size) if formula else None


def _diffusers(name: str, norm: nn.Module) -> Any:
    """The forward of the diffusers norm called `name` where `norm` is one; diffusers is not imported."""
    for base in type(norm).__mro__:
        if base.__name__ == name and base.__module__ == "diffusers.models.normalization":
            return base.forward  # type: ignore[attr-defined]
    return None


def _mean_square(x: torch.Tensor, tp: Group, full_size: int) -> torch.Tensor:
    return tp.all_reduce(x.square().sum(-1, keepdim=True)).div_(full_size)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In float32 or better, as the stock norms compute."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _torch_rms_norm(norm: nn.RMSNorm, tp: Group, full_size: int, x: torch.Tensor) -> torch.Tensor:
    wide = _wide(x)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    out = wide * torch.rsqrt(_mean_square(wide, tp, full_size) + eps)
    return (out if norm.weight is None else out * norm.weight).to(x.dtype)


def _diffusers_rms_norm(norm: Any, tp: Group, full_size: int, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = x * torch.rsqrt(_mean_square(x.float(), tp, full_size) + norm.eps)
    if norm.weight is None:
        return out.to(x.dtype)
    if norm.weight.dtype in (torch.float16, torch.bfloat16):  # as the library rounds
        out = out.to(norm.weight.dtype)
    out = out * norm.weight
    return out if norm.bias is None else out + norm.bias


def _layer_norm(norm: nn.LayerNorm, tp: Group, full_size: int, x: torch.Tensor) -> torch.Tensor:
    wide = _wide(x)
    # the mean first: a sum of squares about zero loses the digits of a small variance
    centred = wide - tp.all_reduce(wide.sum(-1, keepdim=True)).div_(full_size)
    out = centred * torch.rsqrt(_mean_square(centred, tp, full_size) + norm.eps)
    if norm.weight is not None:
        out = out * norm.weight
    return (out if norm.bias is None else out + norm.bias).to(x.dtype)
