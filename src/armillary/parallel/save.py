"""`armillary.save`: a model, sharded or whole, written as an ordinary checkpoint."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from armillary.checkpoint.header import several
from armillary.errors import CheckpointError, Problem
from armillary.parallel.collectives import Group
from armillary.parallel.tensor import Sharding, sharding_of
from armillary.plan.ranges import Shard
from armillary.plan.resolve import ResolvedPlan

_STEM = "diffusion_pytorch_model"
MAX_FILE_BYTES = 5_000_000_000
"""A file is closed before it grows past this; the first rank holds one file's tensors at a time."""


def save(model: Any, folder: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
    """Write `model` to `folder` in the layout that `from_pretrained` and `armillary.load` read.

    A sharded model is put together tensor by tensor: every rank of its layout must call this, the first
    one writes, and all return when the folder is complete. Nothing half written is left in `folder`.

    Raises `CheckpointError` on every rank when the folder cannot be written, or when the model is of no
    class that writes a config.
    """
    folder = Path(folder)
    _refuse_without_config(model)
    sharding = sharding_of(model)
    _refuse_absent(sharding)
    groups = list(sharding.mesh.groups.values()) if sharding else []
    tp = sharding.mesh.tp if sharding else Group("tp")
    wholes = _whole_tensors(model, sharding.resolved if sharding else None, tp)
    cause = None
    if sharding is None or sharding.mesh.is_first:
        try:
            _write(model, wholes, folder, max_file_bytes)
        except Exception as error:  # not OSError alone: safetensors raises its own for a full disk
            cause = error
    for _ in wholes:
        pass  # the other ranks send; the first one, if it failed, still takes what they send
    failure = f"{folder} cannot be written: {cause}" if cause else None
    for group in groups:  # axis by axis the word reaches every rank of the mesh
        failure = next(filter(None, group.share(failure)), None)
    if failure:
        problem = Problem("save-writes", failure, "give a folder with room that you may write to")
        raise CheckpointError(problem) from cause


def _refuse_without_config(model: Any) -> None:
    if not hasattr(model, "save_config"):
        raise CheckpointError(
            Problem(
                "save-config",
                f"{type(model).__name__} has no save_config, so its folder could not be loaded again",
                "save a diffusers model, or write state_dict() yourself",
            )
        )


def _refuse_absent(sharding: Sharding | None) -> None:
    if sharding and sharding.absent:
        raise CheckpointError(
            Problem(
                "save-whole",
                f"{len(sharding.absent)} parameters were left out of this model or live elsewhere: "
                + several(sorted(sharding.absent), 3),
                "load it without residency and leave_out to save it",
            )
        )


def _whole_tensors(
    model: nn.Module, resolved: ResolvedPlan | None, tp: Group
) -> Iterator[tuple[str, torch.Tensor]]:
    """Full tensors in the order of the state dict. On ranks other than the first they are the local ones."""
    for name, tensor in model.state_dict().items():
        shard = resolved.shards.get(name) if resolved else None
        if resolved is None or shard is None:
            yield name, tensor
            continue
        shape = resolved.skeleton.parameters[name].shape
        parts = tp.collect(tensor, [shard.local_shape(shape, rank) for rank in range(tp.size)])
        yield name, tensor if parts is None else put_together(parts, shard, shape)


def put_together(parts: list[torch.Tensor], shard: Shard, shape: tuple[int, ...]) -> torch.Tensor:
    """The full tensor of `shape` from every rank's part; copied ranges are written more than once."""
    whole = torch.empty(shape, dtype=parts[0].dtype, device=parts[0].device)
    for rank, part in enumerate(parts):
        at = 0
        for start, stop in shard.ranges(rank):
            whole.narrow(shard.dim, start, stop - start).copy_(part.narrow(shard.dim, at, stop - start))
            at += stop - start
    return whole


def _write(model: Any, wholes: Iterator[tuple[str, torch.Tensor]], folder: Path, max_file_bytes: int) -> None:
    """Write into a folder inside the target first, then move every file out of it."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as scratch:
            partial = Path(scratch)
            model.save_config(partial)
            _write_tensors(wholes, partial, max_file_bytes)
            _replace_weights(folder, partial)
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _replace_weights(folder: Path, partial: Path) -> None:
    """Move the new files in, and remove the earlier weights that none of them has replaced."""
    new = {file.name for file in partial.iterdir()}
    for name in new:
        (partial / name).replace(folder / name)
    for pattern in ("", "-?????-of-?????"):
        for stale in folder.glob(f"{_STEM}{pattern}.safetensors*"):
            if stale.name not in new:
                stale.unlink()


def _write_tensors(wholes: Iterator[tuple[str, torch.Tensor]], folder: Path, max_file_bytes: int) -> None:
    """One file, or numbered files and an index, as diffusers names them."""
    from safetensors.torch import save_file

    files: list[list[str]] = []
    total = 0
    for group in _grouped(wholes, max_file_bytes):
        save_file(group, folder / f"part-{len(files)}", metadata={"format": "pt"})
        files.append(list(group))
        total += sum(tensor.nbytes for tensor in group.values())
    if len(files) == 1:
        (folder / "part-0").rename(folder / f"{_STEM}.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files):
        file = f"{_STEM}-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / f"{_STEM}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _grouped(
    wholes: Iterator[tuple[str, torch.Tensor]], max_file_bytes: int
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Consecutive tensors that fit into one file together."""
    group: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in wholes:
        if group and size + tensor.nbytes > max_file_bytes:
            yield group
            group, size = {}, 0
        group[name] = tensor.detach().contiguous().cpu()
        size += tensor.nbytes
    yield group
