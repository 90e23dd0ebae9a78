"""A checkpoint of any size that takes no room: true headers before files that are holes."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from armillary.models.registry import skeleton_for

SUPER: Mapping[str, Any] = {
    "_class_name": "Cosmos3OmniTransformer",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
"""As large as Cosmos3-Super."""


def write_sparse(folder: Path, config: Mapping[str, Any], files: int = 1) -> Path:
    """Write a checkpoint of a registered class in bfloat16; returns its folder."""
    tensors = {name: p.shape for name, p in skeleton_for(config["_class_name"], config).parameters.items()}
    return write_headers(folder, config, tensors, files)


def write_headers(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], files: int = 1
) -> Path:
    """Write a checkpoint with these tensors in bfloat16, without values; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(files):
        file = f"diffusion_pytorch_model-{number + 1:05d}-of-{files:05d}.safetensors"
        mine = names[number::files]
        _write_file(folder / file, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _write_file(path: Path, tensors: Mapping[str, Iterable[int]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
