"""A checkpoint folder held against the model class that its config names. Headers only, no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from armillary.checkpoint.dtypes import BY_NAME, DTYPES, DType
from armillary.checkpoint.index import CheckpointIndex, compare, read_index
from armillary.errors import ArmillaryError, CheckpointError, Problem
from armillary.models.registry import family_of, held_dtype, skeleton_for
from armillary.plan.skeleton import Skeleton


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
    match config:
        case {"_class_name": str(name)} | {"architectures": [str(name), *_]}:
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
    skeleton = _configured(model_class, index)
    hold_against(index, skeleton)
    family = family_of(model_class)
    assert family is not None, "only a registered class has a skeleton"
    return DescribedCheckpoint(model_class, index, as_loaded(skeleton, index, dtype, family.FP32_MODULES))


def _configured(model_class: str, index: CheckpointIndex) -> Skeleton:
    """The skeleton of the checkpoint's config; an unknown class or impossible value names the file."""
    try:
        return skeleton_for(model_class, index.config)
    except ArmillaryError as error:
        file = index.folder / "config.json"
        raise CheckpointError(
            replace(problem, message=f"{file}: {problem.message}") for problem in error.problems
        ) from None


def hold_against(index: CheckpointIndex, skeleton: Skeleton) -> None:
    """Raise `CheckpointError` unless the checkpoint has the tensors of the skeleton and no others."""
    problems = compare(index, {name: p.shape for name, p in skeleton.parameters.items()})
    problems += [
        Problem(
            "stored-dtype",
            f"{name} is stored as {index.tensors[name].dtype}, which are no floating-point weights",
            "convert the checkpoint again",
        )
        for name, parameter in skeleton.parameters.items()
        if name in index.tensors
        and _is_float(parameter.dtype)
        and not _is_float(DTYPES[index.tensors[name].dtype].name)
    ]
    if problems:
        raise CheckpointError(problems)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


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

    `stored` is a safetensors code.
    """
    kind = DTYPES[stored]
    if not kind.name.startswith(("float", "bfloat")):
        return kind
    return held_dtype(name, BY_NAME[asked] if asked else kind, fp32_modules)
