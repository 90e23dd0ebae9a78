"""Random weights for a model that exists only as names and shapes, written file by file.

Every tensor is drawn from a generator seeded by the checkpoint's seed and the tensor's own name, so its
values depend neither on the number of files nor on which other tensors the variant has. At most one
file's tensors are in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.errors import Problem, RequestError

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], object]

_WEIGHTS_NAME = "diffusion_pytorch_model"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the tensors of one model are drawn; a rule's key is a part of the tensor's name."""

    seed: int
    dtype: str = "float32"
    """Stored dtype, by torch's name; the model's `_keep_in_fp32_modules` stay float32."""
    bias_std: float
    fan_in: Mapping[str, int] = field(default_factory=dict)
    """Inputs of tensors whose shape does not tell."""
    gain: Mapping[str, float] = field(default_factory=dict)
    """Factors on mean and standard deviation."""


def write_model(
    folder: Path,
    model_class: Any,
    config: Mapping[str, Any],
    recipe: Recipe,
    *,
    files: int = 1,
    progress: Progress | None = None,
) -> None:
    """Write `config.json` and the safetensors files of a `model_class(**config)` with random weights.

    Args:
        model_class: a diffusers model class; it is built on the meta device only.
        files: number of safetensors files; two and more get the index that diffusers reads.
        progress: called after each tensor with the bytes drawn so far and the bytes in all.

    Raises:
        RequestError: more files than tensors.
    """
    import torch
    from safetensors.torch import save_file

    with torch.device("meta"):
        model = model_class(**config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    keep_fp32 = tuple(model_class._keep_in_fp32_modules or ())
    dtypes = {name: _stored_dtype(name, recipe.dtype, keep_fp32) for name in shapes}
    sizes = {name: math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items()}

    total = sum(sizes.values())
    if files > len(sizes):
        message = f"files={files} is more than the {len(sizes)} tensors of {model_class.__name__}"
        raise RequestError(Problem("files", message, f"use 1 to {len(sizes)}"))
    parts = split_evenly(sizes, files)
    model.save_config(folder)
    weight_map: dict[str, str] = {}
    drawn = 0
    for filename, names in zip(_file_names(len(parts)), parts, strict=True):
        tensors = {}
        for name in names:
            tensors[name] = _draw(name, shapes[name], recipe).to(dtypes[name])
            drawn += sizes[name]
            if progress:
                progress(drawn, total)
        save_file(tensors, folder / filename, metadata={"format": "pt"})
        # safetensors makes files that only their owner reads; a checkpoint is read by whom the folder is for
        (folder / filename).chmod((folder / "config.json").stat().st_mode)
        weight_map |= dict.fromkeys(names, filename)
    if files > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": dict(sorted(weight_map.items())),
        }
        write_json(folder / f"{_WEIGHTS_NAME}.safetensors.index.json", index)


def split_evenly(sizes: Mapping[str, int], files: int) -> list[list[str]]:
    """Cut the names, in order, into `files` runs of about the same number of bytes, none of them empty."""
    parts: list[list[str]] = [[]]
    bytes_left = sum(sizes.values())
    room = bytes_left / files
    for position, (name, size) in enumerate(sizes.items()):
        files_left = files - len(parts)
        must_close = len(sizes) - position == files_left
        if parts[-1] and files_left and (must_close or room < size / 2):
            parts.append([])
            room = bytes_left / files_left
        parts[-1].append(name)
        room -= size
        bytes_left -= size
    return parts


def write_json(path: Path, document: Any) -> None:
    """Write `document` with the indentation and the final newline of the published files."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _file_names(count: int) -> Iterator[str]:
    if count == 1:
        yield f"{_WEIGHTS_NAME}.safetensors"
        return
    for i in range(1, count + 1):
        yield f"{_WEIGHTS_NAME}-{i:05d}-of-{count:05d}.safetensors"


def _stored_dtype(name: str, dtype: str, keep_fp32: Sequence[str]) -> torch.dtype:
    import torch

    kept = any(part in keep_fp32 for part in name.split("."))
    stored = torch.float32 if kept else getattr(torch, dtype)
    assert isinstance(stored, torch.dtype), f"{dtype!r} is checked before"
    return stored


def _draw(name: str, shape: tuple[int, ...], recipe: Recipe) -> torch.Tensor:
    import torch

    digest = hashlib.sha256(f"{recipe.seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    mean, std = _distribution(name, shape, recipe)
    return torch.empty(shape, dtype=torch.float32).normal_(mean, std, generator=generator)


def _distribution(name: str, shape: tuple[int, ...], recipe: Recipe) -> tuple[float, float]:
    """Mean and standard deviation that keep activations of order 1 from layer to layer."""
    gain = math.prod(factor for part, factor in recipe.gain.items() if part in name)
    leaf = name.rpartition(".")[2]
    if leaf in ("alpha", "beta"):  # Snake activations store logarithms
        return 0.0, 0.1
    if leaf in ("gamma", "weight_g") or (len(shape) == 1 and "norm" in name and leaf == "weight"):
        return gain, 0.2 * gain
    if len(shape) == 1 or name.endswith("bias.weight"):  # biases, modality embeddings, bias tables
        return 0.0, recipe.bias_std
    if name == "embed_tokens.weight":
        return 0.0, 1.0
    fan_in = next((n for part, n in recipe.fan_in.items() if part in name), math.prod(shape[1:]))
    return 0.0, gain / math.sqrt(fan_in)
