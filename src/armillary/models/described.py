"""A checkpoint folder held against the model class that its config names. Headers only, no torch.

Where a family writes its parameters down, they are compared with what is stored. For the other classes
what is stored is taken as it is: `load` compares it with the class itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from armillary.checkpoint.dtypes import BY_NAME, DTYPES, DType
from armillary.checkpoint.index import CheckpointIndex, compare, read_index
from armillary.errors import ArmillaryError, CheckpointError, Problem
from armillary.models.registry import family_of, held_dtype, skeleton_for, with_facts
from armillary.plan.explain import pattern_of
from armillary.plan.skeleton import Parameter, Skeleton


@dataclass(frozen=True)
class DescribedCheckpoint:
    """A checkpoint, and the skeleton that its tensors and its config are."""

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
    """Read the headers of `folder`, held against the class of its config where that is written down.

    Args:
        folder: the folder with `config.json` and the safetensors files.
        dtype: torch's name of the dtype a load would ask for; None keeps what is stored.

    Raises:
        CheckpointError: not a checkpoint, no model class, or tensors that are missing, extra or
            mis-shaped; all of them.
    """
    return describe_index(read_index(folder), dtype=dtype)


def describe_index(index: CheckpointIndex, *, dtype: str | None = None) -> DescribedCheckpoint:
    """See `describe`; of headers that are read already."""
    model_class = class_named_in(index.config, index.folder)
    family = family_of(model_class)
    if family and hasattr(family, "parameters"):
        skeleton = _configured(model_class, index)
        hold_against(index, skeleton)
    else:
        skeleton = skeleton_of_headers(model_class, index)
    kept = family.FP32_MODULES if family else ()
    return DescribedCheckpoint(model_class, index, as_loaded(skeleton, index, dtype, kept))


def skeleton_of_headers(model_class: str, index: CheckpointIndex) -> Skeleton:
    """The skeleton that the stored tensors and the config are; kinds follow from names and ranks."""
    config = {key: value for key, value in index.config.items() if not key.startswith("_")}
    family = family_of(model_class)
    index = without_ignored(index, getattr(family, "IGNORED", ()), ())
    told: Mapping[str, str] = getattr(family, "KINDS", {})
    parameters = {}
    for name, entry in index.tensors.items():
        stored = DTYPES[entry.dtype]
        kind = told.get(pattern_of(name.rpartition(".")[0])) or kind_of(name, dict(_siblings(name, index)))
        parameters[name] = Parameter(entry.shape, stored.name, stored.itemsize, kind)
    skeleton = Skeleton(model_class=model_class, config=config, parameters=parameters)
    return with_facts(skeleton, family) if family else skeleton


def without_ignored(
    index: CheckpointIndex, patterns: Collection[str], wanted: Collection[str]
) -> CheckpointIndex:
    """The checkpoint without the tensors that its class passes over, which some were saved with: Wan's have
    norms of queries that nothing computes.

    Args:
        patterns: found in the name of such a tensor.
        wanted: what the model has, which stays.
    """
    if not patterns:
        return index
    ignored = re.compile("|".join(patterns))
    kept = {n: entry for n, entry in index.tensors.items() if n in wanted or not ignored.search(n)}
    return replace(index, tensors=kept)


def _siblings(name: str, index: CheckpointIndex) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of the weight and the bias of the module that owns a tensor."""
    owner = name.rpartition(".")[0]
    for leaf in ("weight", "bias"):
        if entry := index.tensors.get(f"{owner}.{leaf}"):
            yield leaf, entry.shape


_EMBEDDINGS = ("embed", "embedding", "embeddings", "embed_tokens", "word_embeddings", "embedding_table")


def kind_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The kind of the module that owns parameter `name`, by what is stored of it.

    Args:
        shapes: of the module's "weight" and "bias", where they are stored.
    """
    *path, leaf = name.split(".")
    rank = len(shapes.get("weight", ()))
    if leaf not in ("weight", "bias") or rank not in (1, 2):
        return "other"  # a table of the model's own, a convolution
    if rank == 1:
        return "norm"
    return "embedding" if path and path[-1] in _EMBEDDINGS and "bias" not in shapes else "linear"


def _configured(model_class: str, index: CheckpointIndex) -> Skeleton:
    """The skeleton of the checkpoint's config; an impossible value names the file."""
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
