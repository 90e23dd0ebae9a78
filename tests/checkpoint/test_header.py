"""One file's header: every way in which it can be wrong is produced and named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from armillary.checkpoint.dtypes import DTYPES
from armillary.checkpoint.header import read_header
from armillary.errors import CheckpointError


def damaged(path: Path, data: bytes = b"", **header: dict[str, Any]) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def f32(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


def test_entries_say_where_the_bytes_lie(file: Path) -> None:
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(5)}, file, metadata={"format": "pt"})
    entries = {entry.name: entry for entry in read_header(file)}
    a = entries["a"]
    assert (a.file, a.dtype, a.shape, a.nbytes) == (file, "F32", (2, 3), 24)
    assert file.read_bytes()[a.offset :][:24] == torch.arange(6.0).numpy().tobytes()
    assert entries["b"].shape == ()


@pytest.mark.parametrize("code", DTYPES)
def test_every_type_is_read_as_torch_wrote_it(file: Path, code: str) -> None:
    tensor = torch.zeros(4, 16, dtype=torch.uint8).view(getattr(torch, DTYPES[code].name))
    save_file({"x": tensor}, file)
    (entry,) = read_header(file)
    assert (entry.dtype, entry.shape, entry.nbytes) == (code, tuple(tensor.shape), tensor.nbytes)
    assert DTYPES[code].itemsize == tensor.itemsize


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "but a git-lfs pointer; .*git lfs pull",
        ),
        (b"<!DOCTYPE html><html>", "but a web page"),
        (b"GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "but a GGUF file"),
        (bytes(4096), "but zeros, as an unfinished download"),
        (b"", "has 0"),
        (b"abc", "has 3"),
        (b"\xff\xff\x00\x00\x00\x00\x00\x00{}", "declare a header of 65535 bytes, and the file has 10"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", "header is not JSON"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00[]", "not a JSON object"),
    ],
)
def test_what_is_no_safetensors_file_is_named(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_named(file: Path, zipped: bool) -> None:
    torch.save({"x": torch.ones(2)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="but a pickle saved by torch; convert it"):
        read_header(file)


def test_a_truncated_file_names_the_bytes_and_what_is_cut(file: Path) -> None:
    save_file({"a": torch.ones(10), "b": torch.ones(10)}, file)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{size} bytes expected, {size - 1} found; what is cut: b"):
        read_header(file)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": f32(0, 8, 2), "b": f32(4, 12, 2)}, "tensor b of .* overlaps a"),
        ({"a": f32(0, 8, 2), "b": f32(12, 20, 2)}, "tensor b of .* leaves a hole after a"),
        ({"a": f32(4, 20, 4)}, "tensor a of .* leaves a hole after the header"),
        ({"a": f32(8, 0, 2)}, "ends before it begins"),
        ({"a": f32(0, 20, 4)}, r"has 20 bytes where shape \[4\] of F32 needs 16"),
        ({"a": f32(0, 20, 5, dtype="F33")}, "unknown dtype 'F33'; known are F64"),
        ({"a": f32(0, 20, -5)}, "must be whole numbers"),
        ({"a": {"dtype": "F32"}}, "lacks its dtype, shape or data_offsets"),
        ({"a": [1]}, "lacks its dtype, shape or data_offsets"),
        ({"a": f32(0, 16, 4)}, "has 4 bytes after its last tensor"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    file: Path, header: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_header(damaged(file, bytes(20), **header))


def test_a_name_given_twice_is_refused(file: Path) -> None:
    file.write_bytes((15).to_bytes(8, "little") + b'{"a":{},"a":{}}')
    with pytest.raises(CheckpointError, match="a named twice"):
        read_header(file)


def test_all_problems_of_a_file_are_listed(file: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(damaged(file, bytes(8), a=f32(0, 8, 3), b=f32(0, 8, 2, dtype="Q4")))
    assert len(caught.value.problems) == 2


def test_the_library_refuses_a_hole_too(file: Path) -> None:
    with pytest.raises(SafetensorError):
        load_file(damaged(file, bytes(20), a=f32(0, 8, 2), b=f32(12, 20, 2)))
