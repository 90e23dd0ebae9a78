"""A checkpoint folder held against the model class that its config names. Headers only, no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.checkpoint.dtypes import DTYPES, DType
from armillary.checkpoint.index import CheckpointIndex, compare, read_index
from armillary.errors import CheckpointError, Problem, list_choices
from armillary.models.registry import family_of, known_classes, skeleton_for
from armillary.plan.skeleton import Skeleton

_NAMED = {dtype.name: dtype for dtype in DTYPES.values()}


@dataclass(frozen=True)
class DescribedCheckpoint:
    """A checkpoint whose tensors are exactly those of its model class."""

    model_class: str
    index: CheckpointIndex
    skeleton: Skeleton
    """With the dtypes that a load gives the tensors."""


def class_named_in(config: Mapping[str, Any], folder: Path) -> str:
    """The model class of a `config.json`: diffusers' `_class_name` or transformers' `architectures`.

    Raises `CheckpointError` when it names none.
    """
    name = config.get("_class_name") or next(iter(config.get("architectures") or ()), None)
    if isinstance(name, str):
        return name
    raise CheckpointError(
        Problem(
            "model-class",
            f"{folder / 'config.json'} names no model class",
            'it must hold "_class_name" (diffusers) or "architectures" (transformers)',
        )
    )


def describe(folder: Path, *, dtype: str | None = None) -> DescribedCheckpoint:
    """Read the headers of `folder` and hold them against the registered class of its config.

    Args:
        folder: the folder with `config.json` and the safetensors files.
        dtype: torch's name of the dtype a load would ask for; None keeps what is stored.

    Raises:
        CheckpointError: not a checkpoint, an unknown class, or tensors that are missing, extra or
            mis-shaped; all of them.
    """
    index = read_index(folder)
    model_class = class_named_in(index.config, folder)
    family = family_of(model_class)
    if family is None:
        raise CheckpointError(
            Problem(
                "unknown-class",
                f"{folder}: {model_class} is not a model class Armillary knows",
                f"known classes: {list_choices(known_classes())}",
            )
        )
    skeleton = skeleton_for(model_class, index.config)
    hold_against(index, skeleton)
    return DescribedCheckpoint(model_class, index, as_loaded(skeleton, index, dtype, family.FP32_MODULES))


def hold_against(index: CheckpointIndex, skeleton: Skeleton) -> None:
    """Raise `CheckpointError` unless the checkpoint has the tensors of the skeleton and no others."""
    if problems := compare(index, {name: p.shape for name, p in skeleton.parameters.items()}):
        raise CheckpointError(problems)


def as_loaded(
    skeleton: Skeleton, index: CheckpointIndex, dtype: str | None, fp32_modules: Collection[str]
) -> Skeleton:
    """The skeleton with the dtypes that its parameters have once they are loaded."""
    dtypes = {
        name: loaded_dtype(name, entry.dtype, dtype, fp32_modules) for name, entry in index.tensors.items()
    }
    return skeleton.with_dtypes({name: (dtype.name, dtype.itemsize) for name, dtype in dtypes.items()})


def loaded_dtype(name: str, stored: str, asked: str | None, fp32_modules: Collection[str]) -> DType:
    """The dtype of a parameter in memory: integers as stored, fp32-kept modules float32, else as asked.

    `stored` is a safetensors code; a module is kept when it is any part of the parameter's path, which
    is how diffusers reads `_keep_in_fp32_modules`.
    """
    kind = DTYPES[stored]
    if not kind.name.startswith(("float", "bfloat")):
        return kind
    if not set(name.split(".")).isdisjoint(fp32_modules):
        return _NAMED["float32"]
    return _NAMED[asked] if asked else kind
