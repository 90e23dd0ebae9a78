"""The headers of a hub repo's weights, read where they are: a range of bytes of each file, no download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from armillary.checkpoint.header import TensorEntry
from armillary.checkpoint.index import STEMS, CheckpointIndex, read_object
from armillary.errors import CheckpointError, Problem


def read_hub_index(repo: str, revision: str, subfolder: str | None, configs: Path) -> CheckpointIndex:
    """What a model of a hub repo holds; offsets of tensors count from the end of their file's header.

    Args:
        configs: the folder with the model's JSON files, which are here already.

    Raises:
        CheckpointError: no safetensors file, or one whose header cannot be read.
    """
    tensors = {
        entry.name: entry
        for file in _files(configs)
        for entry in _entries(repo, revision, f"{subfolder}/{file}" if subfolder else file)
    }
    return CheckpointIndex(configs, read_object(configs / "config.json"), tensors)


def _files(configs: Path) -> list[str]:
    """Names of the weight files: those of the index, else the one that diffusers writes."""
    for stem in STEMS:
        if (index := configs / f"{stem}.safetensors.index.json").is_file():
            return sorted(set(read_object(index).get("weight_map", {}).values()))
    return [f"{STEMS[0]}.safetensors"]


def _entries(repo: str, revision: str, file: str) -> Iterator[TensorEntry]:
    from huggingface_hub import HfApi

    try:
        header = HfApi().parse_safetensors_file_metadata(repo, file, revision=revision)
    except Exception as error:  # network, login, name, header: to the user all of them mean "not read"
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        what = f"the header of {file} of {repo} cannot be read: {reason}"
        fix = "check the network and the hub login, or download the repo and name its folder"
        raise CheckpointError(Problem("checkpoint-headers", what, fix)) from error
    for name, info in header.tensors.items():
        start, stop = info.data_offsets
        yield TensorEntry(name, Path(file), info.dtype, tuple(info.shape), start, stop - start)
