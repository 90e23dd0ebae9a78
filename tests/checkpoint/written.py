"""Small real checkpoints, written by the safetensors library."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

Files = Mapping[str, Mapping[str, torch.Tensor]]


def write_checkpoint(folder: Path, files: Files) -> Path:
    """One file under diffusers' name, or several with an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"_class_name": "Toy"}')
    for name, tensors in files.items():
        save_file(dict(tensors), folder / name)
    if len(files) > 1:
        weight_map = {tensor: file for file, tensors in files.items() for tensor in tensors}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_one_file(folder: Path) -> Path:
    """Tensors a.weight [4, 6], b [] and c [3] in three dtypes."""
    tensors = {"a.weight": torch.arange(24.0).reshape(4, 6), "b": torch.tensor(7), "c": torch.ones(3).half()}
    return write_checkpoint(folder, {"diffusion_pytorch_model.safetensors": tensors})


def write_two_files(folder: Path) -> Path:
    """a and b in s1.safetensors, c in s2.safetensors, and an index."""
    files = {
        "s1.safetensors": {"a": torch.ones(2, 3), "b": torch.ones(4)},
        "s2.safetensors": {"c": torch.ones(5)},
    }
    return write_checkpoint(folder, files)
