"""Ranks that call a model with different inputs: an error on every rank, before any collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from armillary.parallel.collectives import agree_over
from armillary.parallel.mesh import Mesh


def compare_inputs(model: nn.Module, mesh: Mesh) -> Callable[[], None]:
    """Compare shapes and dtypes of the model's inputs at every call, over the ranks that call it together.

    The cfg axis is none of them: its groups have prompts of their own. Returns what ends it.
    """
    groups = [group for axis, group in mesh.groups.items() if axis != "cfg" and group.size > 1]
    if not groups:
        return lambda: None
    compare = partial(_compare, groups, mesh.device())
    return model.register_forward_pre_hook(compare, with_kwargs=True).remove


def facts_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """What must be equal on ranks that compute together: shape and dtype of every tensor among the inputs,
    and whole numbers, which are lengths."""
    return dict(_facts([*args, dict(kwargs)]))


def _compare(
    groups: Any, device: torch.device, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    agree_over(groups, "the inputs of the model", facts_of(args, kwargs), device)


def _facts(inputs: Any) -> Iterator[tuple[str, object]]:
    leaves, _ = tree_flatten_with_path(inputs)
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield keystr(path), f"{leaf.dtype}{list(leaf.shape)}"
        elif isinstance(leaf, int):
            yield keystr(path), leaf
