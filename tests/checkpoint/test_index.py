"""A whole folder: config, index and files, each fault produced for real."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from written import write_checkpoint, write_one_file, write_two_files

from armillary.checkpoint.index import compare, read_index
from armillary.errors import CheckpointError

INDEX = "diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    return write_one_file(tmp_path / "one")


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    return write_two_files(tmp_path / "two")


def problems_of(folder: Path, **options: Any) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        read_index(folder, **options)
    return [str(problem) for problem in caught.value.problems]


def place(folder: Path, **tensors: str) -> None:
    """Change the index's weight_map."""
    path = folder / INDEX
    index = json.loads(path.read_text())
    index["weight_map"].update(tensors)
    path.write_text(json.dumps(index))


def test_one_file_is_read(one_file: Path) -> None:
    index = read_index(one_file)
    assert {name: entry.shape for name, entry in index.tensors.items()} == {
        "a.weight": (4, 6),
        "b": (),
        "c": (3,),
    }
    assert index.config == {"_class_name": "Toy"}
    assert index.nbytes == 96 + 8 + 6


def test_several_files_are_read_by_their_index(two_files: Path) -> None:
    index = read_index(two_files)
    assert {name: entry.file.name for name, entry in index.tensors.items()} == {
        "a": "s1.safetensors",
        "b": "s1.safetensors",
        "c": "s2.safetensors",
    }


def test_the_names_of_transformers_and_variants_are_known(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"model.fp16.safetensors": {"a": torch.ones(2).half()}})
    assert read_index(tmp_path, variant="fp16").tensors["a"].dtype == "F16"
    (problem,) = problems_of(tmp_path)
    assert "has no weights" in problem
    assert "it holds model.fp16.safetensors" in problem


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "no") == [f"{tmp_path / 'no'} is not a folder; check the path"]


def test_a_pipeline_folder_names_its_subfolders(one_file: Path) -> None:
    (problem,) = problems_of(one_file.parent)
    assert "is not a checkpoint" in problem
    assert problem.endswith("name one of its subfolders: one")


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "not a JSON object")])
def test_a_config_that_is_not_json_is_named(one_file: Path, text: str, message: str) -> None:
    (one_file / "config.json").write_text(text)
    assert message in problems_of(one_file)[0]


def test_missing_config_and_pickled_weights_are_both_listed(one_file: Path) -> None:
    (one_file / "config.json").unlink()
    (one_file / "diffusion_pytorch_model.safetensors").rename(one_file / "old.safetensors")
    (one_file / "diffusion_pytorch_model.bin").touch()
    config, weights = problems_of(one_file)
    assert config.endswith("config.json is missing")
    assert "it holds diffusion_pytorch_model.bin, old.safetensors: " in weights


def test_an_index_without_a_weight_map_is_refused(two_files: Path) -> None:
    (two_files / INDEX).write_text('{"weight_map": {"a": 1}}')
    assert "has no weight_map" in problems_of(two_files)[0]


@pytest.mark.parametrize("file", ["../x.safetensors", "/x.safetensors", "a/../../x", "..\\x", "C:\\x", "C:x"])
def test_an_index_that_leads_outside_its_folder_is_refused(two_files: Path, file: str) -> None:
    place(two_files, a=file)
    assert "names files outside its folder" in problems_of(two_files)[0]


def test_a_file_that_the_index_names_must_be_there(two_files: Path) -> None:
    (two_files / "s2.safetensors").unlink()
    (problem,) = problems_of(two_files)
    assert "names s2.safetensors, which is missing, for 1 tensor;" in problem


def test_lost_unknown_and_misplaced_tensors_are_all_listed(two_files: Path) -> None:
    save_file({"c": torch.ones(5), "new": torch.ones(1)}, two_files / "s2.safetensors")
    place(two_files, a="s2.safetensors", lost="s1.safetensors")
    lost, elsewhere, unknown = problems_of(two_files)
    assert "s1.safetensors lacks tensors that the index places in it: lost" in lost
    assert "s1.safetensors holds tensors that the index places in another file: a (looked" in elsewhere
    assert "s2.safetensors holds tensors that the index does not know: new" in unknown


def test_the_faults_of_all_files_are_listed_at_once(two_files: Path) -> None:
    for path in two_files.glob("s?.safetensors"):
        path.write_bytes(path.read_bytes()[:-4])
    assert ["is truncated" in problem for problem in problems_of(two_files)] == [True, True]


def test_a_checkpoint_that_fits_its_model_has_no_problems(one_file: Path) -> None:
    assert compare(read_index(one_file), {"a.weight": (4, 6), "b": (), "c": (3,)}) == []


def test_missing_misshaped_and_extra_tensors_are_told_with_near_matches(one_file: Path) -> None:
    found = compare(read_index(one_file), {"a.weights": (4, 6), "b": (), "c": (4,)})
    missing, shapes, extra = map(str, found)
    assert "a.weights (it has a.weight)" in missing
    assert "c is [3], not [4]" in shapes
    assert "a.weight;" in extra


def test_long_lists_are_cut_and_counted(one_file: Path) -> None:
    expected = {f"layer.{i}": (1,) for i in range(1000)}
    missing = str(compare(read_index(one_file), expected)[0])
    assert "1000 tensors" in missing
    assert "layer.4 and 995 more" in missing


def test_a_large_checkpoint_is_read_by_its_headers_alone(tmp_path: Path) -> None:
    header = {
        f"t{i}": {"dtype": "BF16", "shape": [1 << 20], "data_offsets": [i << 21, i + 1 << 21]}
        for i in range(2500)
    }
    text = json.dumps(header).encode()
    path = write_checkpoint(tmp_path, {}) / "diffusion_pytorch_model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + (2500 << 21))  # a sparse file: 5 GB that take no room
    before, start = _bytes_read(), time.perf_counter()
    assert len(read_index(tmp_path).tensors) == 2500
    assert time.perf_counter() - start < 2
    assert _bytes_read() - before < len(text) + 4096


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
