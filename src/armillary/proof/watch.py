"""Hooks on a model: what each of its layers computes, call by call, in the order in which it is computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class Place(NamedTuple):
    """Which tensor of which layer: JSON as it is."""

    module: str
    """Path of the module."""
    side: str
    """ "output", or "input" for the layers whose input is watched."""
    number: int
    """Counts the tensors of that side within one call of the model: a layer may be run several times."""


See = Callable[[int, Place, torch.Tensor], None]
"""(call of the model, place, tensor): called for every floating-point tensor that is watched."""


@contextmanager
def watched(
    model: nn.Module, inputs_of: Collection[str], see: See, on_call: Callable[[int], None]
) -> Iterator[None]:
    """While inside, `see` is given the outputs of every layer and block, and the inputs of `inputs_of`.

    A layer is a module with parameters of its own, a block a member of a `ModuleList`. `on_call(n)` comes
    before call n of the model; both count from 0.
    """
    watch = _Watch(see, on_call)
    handles = [model.register_forward_pre_hook(watch.next_call)]
    blocks = set(block_paths(model))
    for path, module in model.named_modules():
        if path and (path in blocks or next(module.parameters(recurse=False), None) is not None):
            handles.append(_after(module, watch, path))
        if path in inputs_of:
            handles.append(_before(module, watch, path))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def block_paths(model: nn.Module) -> Iterator[str]:
    """The paths of a model's blocks: the members of its lists of modules, in order."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList):
            yield from (f"{path}.{name}" for name, _ in module.named_children())


class _Watch:
    """Counts calls and tensors."""

    def __init__(self, see: See, on_call: Callable[[int], None]) -> None:
        self._see = see
        self._on_call = on_call
        self._call = -1
        self._numbers: dict[tuple[str, str], int] = {}

    def next_call(self, *_: Any) -> None:
        self._call += 1
        self._numbers.clear()
        self._on_call(self._call)

    def tensors(self, path: str, side: str, values: Any) -> None:
        for tensor in _floating(values):
            number = self._numbers.get((path, side), 0)
            self._numbers[path, side] = number + 1
            with torch.no_grad():
                self._see(self._call, Place(path, side, number), tensor.detach())


def _after(module: nn.Module, watch: _Watch, path: str) -> RemovableHandle:
    return module.register_forward_hook(lambda _, __, output: watch.tensors(path, "output", output))


def _before(module: nn.Module, watch: _Watch, path: str) -> RemovableHandle:
    return module.register_forward_pre_hook(lambda _, args: watch.tensors(path, "input", args))


def _floating(values: Any) -> Iterator[torch.Tensor]:
    for value in values if isinstance(values, tuple | list) else (values,):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield value
