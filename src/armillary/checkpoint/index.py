"""A checkpoint folder without its weights: config, and where every tensor lies. Headers only.

Published folders hold `config.json` and either one file, `diffusion_pytorch_model.safetensors`, or
many with a `diffusion_pytorch_model.safetensors.index.json`; transformers writes `model` instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from armillary.checkpoint.header import TensorEntry, read_header, several
from armillary.errors import CheckpointError, Problem

STEMS = ("diffusion_pytorch_model", "model")
"""What diffusers and transformers call their weights."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointIndex:
    """Everything about a checkpoint that can be known without reading its weights."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(entry.nbytes for entry in self.tensors.values())


def read_index(folder: Path, *, variant: str | None = None) -> CheckpointIndex:
    """What the checkpoint in `folder` holds; `variant` "fp16" takes its `.fp16.` files.

    Reads the config, the index and the header of each file: 8 bytes and its header, nothing more.

    Raises:
        CheckpointError: with everything that is wrong with the folder and its files.
    """
    _refuse_no_checkpoint(folder)
    problems: list[Problem] = []
    config = _collect(problems, lambda: read_object(folder / "config.json"))
    tensors = _collect(problems, lambda: _read_tensors(folder, variant))
    if config is None or tensors is None:
        raise CheckpointError(problems)
    return CheckpointIndex(folder, config, tensors)


def compare(index: CheckpointIndex, expected: Mapping[str, tuple[int, ...]]) -> list[Problem]:
    """How the checkpoint differs from a model: `expected` maps its tensor names to full shapes."""
    tensors = index.tensors
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    other = [name for name in expected if name in tensors and tensors[name].shape != tuple(expected[name])]
    shapes = (f"{name} is {[*tensors[name].shape]}, not {[*expected[name]]}" for name in other)
    found = (
        ("missing-tensors", missing, "of the model are missing from", _with_near_matches(missing, extra)),
        ("tensor-shapes", other, "have another shape than the model wants in", shapes),
        ("extra-tensors", extra, "that the model does not have are in", extra),
    )
    fix = "config.json and weights must belong together, and to this version of the model class"
    return [
        Problem(rule, f"{_count(len(names))} {what} {index.folder}: {several(details)}", fix)
        for rule, names, what, details in found
        if names
    ]


def read_object(path: Path) -> Mapping[str, Any]:
    """A JSON file that holds an object, as `config.json` does; CheckpointError if it does not."""
    if path.exists() and not path.is_file():  # a pipe would never answer
        raise CheckpointError(Problem("checkpoint-json", f"{path} is no ordinary file"))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(Problem("checkpoint-json", f"{path} is missing")) from None
    except OSError as error:
        raise CheckpointError(
            Problem("checkpoint-json", f"{path} cannot be read: {error.strerror}")
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(Problem("checkpoint-json", f"{path} is not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise CheckpointError(Problem("checkpoint-json", f"{path} is not a JSON object"))
    return found


def _refuse_no_checkpoint(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(Problem("checkpoint-folder", f"{folder} is not a folder", "check the path"))
    if (folder / "config.json").exists() or any(folder.glob("*.safetensors*")):
        return
    inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
    fix = f"name one of its subfolders: {', '.join(inside)}" if inside else "check the path"
    what = f"{folder} is not a checkpoint: it holds neither config.json nor safetensors files"
    raise CheckpointError(Problem("checkpoint-folder", what, fix))


def _read_tensors(folder: Path, variant: str | None) -> Mapping[str, TensorEntry]:
    infix = f".{variant}" if variant else ""
    for stem in STEMS:
        # where both are there the index decides, as in diffusers
        if (index := folder / f"{stem}.safetensors.index{infix}.json").exists():
            return _read_indexed(index)
        if (file := folder / f"{stem}{infix}.safetensors").exists():
            return {entry.name: entry for entry in read_header(file)}
    wanted = " or ".join(f"{stem}{infix}.safetensors" for stem in STEMS)
    there = sorted(path.name for pattern in ("*.safetensors", *PICKLES) for path in folder.glob(pattern))
    what = f"{folder} has no weights: {wanted}, whole or with an index"
    fix = (
        f"it holds {several(there)}: name a variant by its infix, convert pickles to safetensors"
        if there
        else "download or save the weights there"
    )
    raise CheckpointError(Problem("checkpoint-weights", what, fix))


def _read_indexed(index: Path) -> Mapping[str, TensorEntry]:
    """The tensors of all files that an index names, held against what it says of them."""
    weight_map = _weight_map(index)
    problems: list[Problem] = []
    held: dict[str, tuple[TensorEntry, ...]] = {}
    for file in sorted(set(weight_map.values())):
        path = index.parent / file
        if not path.is_file():
            names = [name for name, place in weight_map.items() if place == file]
            what = f"{index} names {file}, which is missing, for {_count(len(names))}"
            problems.append(Problem("checkpoint-index", what, "download the missing file"))
        elif (entries := _collect(problems, partial(read_header, path))) is not None:
            held[file] = entries
    problems.extend(_index_problems(index, weight_map, held))
    if problems:
        raise CheckpointError(problems)
    return {entry.name: entry for entries in held.values() for entry in entries}


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        what = f"{index} has no weight_map of tensor names to file names"
        raise CheckpointError(Problem("checkpoint-index", what, "download the index again"))
    if outside := sorted({file for file in weight_map.values() if _leads_outside(file)}):
        what = f"{index} names files outside its folder: {several(outside)}"
        raise CheckpointError(Problem("checkpoint-index", what, "an index names files beside it"))
    return weight_map


def _leads_outside(file: str) -> bool:
    path = PureWindowsPath(file)  # knows both separators, and drives
    return bool(path.anchor) or ".." in path.parts


def _index_problems(
    index: Path, weight_map: Mapping[str, str], held: Mapping[str, tuple[TensorEntry, ...]]
) -> Iterator[Problem]:
    """Tensors that lie elsewhere than the index says, nowhere, or that it does not know."""
    anywhere = {entry.name for entries in held.values() for entry in entries}
    for file, entries in held.items():
        lost = [name for name, place in weight_map.items() if place == file and name not in anywhere]
        unknown = [entry.name for entry in entries if entry.name not in weight_map]
        elsewhere = [
            f"{entry.name} (looked for in {weight_map[entry.name]})"
            for entry in entries
            if weight_map.get(entry.name, file) != file
        ]
        for names, what in (
            (lost, "lacks tensors that the index places in it"),
            (unknown, "holds tensors that the index does not know"),
            (elsewhere, "holds tensors that the index places in another file"),
        ):
            if names:
                message = f"{index.parent / file} {what}: {several(names)}"
                yield Problem(
                    "checkpoint-index", message, "index and files must be of one saving, get both again"
                )


def _with_near_matches(missing: Iterable[str], extra: list[str]) -> Iterator[str]:
    for name in missing:
        near = get_close_matches(name, extra, n=1, cutoff=0.8)
        yield f"{name} (it has {near[0]})" if near else name


def _count(number: int) -> str:
    return f"{number} tensor{'s' if number != 1 else ''}"


def _collect(problems: list[Problem], read: Callable[[], T]) -> T | None:
    """What `read` returns; None where it fails, and its problems join the others."""
    try:
        return read()
    except CheckpointError as error:
        problems.extend(error.problems)
        return None
