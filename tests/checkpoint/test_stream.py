"""Reading ranges: the right values, in tensors of their own, and no byte more."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from written import write_checkpoint

from armillary.checkpoint.dtypes import DTYPES
from armillary.checkpoint.index import CheckpointIndex, read_index
from armillary.checkpoint.stream import WINDOW, Wanted, read_tensors
from armillary.errors import CheckpointError

BIG = torch.randn(3000, 2048)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> CheckpointIndex:
    files = {
        "s1.safetensors": {"big": BIG, "scalar": torch.tensor(7), "empty": torch.ones(0, 3)},
        "s2.safetensors": {code: every_bit(code) for code in DTYPES},
    }
    return read_index(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), files))


def every_bit(code: str) -> torch.Tensor:
    return (
        (torch.arange(128) % 2 if code == "BOOL" else torch.arange(128))
        .byte()
        .view(torch_dtype(code))
        .reshape(2, -1)
    )


def torch_dtype(code: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, DTYPES[code].name)
    return dtype


def read_one(
    index: CheckpointIndex, name: str, wanted: Wanted = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    ((_, tensor),) = read_tensors(index, {name: wanted}, dtype_of=lambda _, stored: dtype or stored)
    return tensor


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("name", ["big", "scalar", "empty"])
def test_whole_tensors_are_read(index: CheckpointIndex, name: str) -> None:
    expected = {"big": BIG, "scalar": torch.tensor(7), "empty": torch.ones(0, 3)}[name]
    assert torch.equal(read_one(index, name), expected)


@pytest.mark.parametrize("code", DTYPES)
def test_every_type_keeps_its_bits(index: CheckpointIndex, code: str) -> None:
    assert same_bits(read_one(index, code), every_bit(code))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("dim", "ranges"),
    [(0, [(1000, 2500)]), (0, [(0, 9), (2990, 3000)]), (1, [(512, 1024)]), (1, [(0, 7), (2000, 2048)])],
)
def test_ranges_are_put_together_and_cast(
    index: CheckpointIndex, dim: int, ranges: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    expected = torch.cat([BIG.narrow(dim, start, stop - start) for start, stop in ranges], dim).to(dtype)
    assert torch.equal(read_one(index, "big", (dim, ranges), dtype), expected)


def test_the_dtype_is_asked_for_each_tensor_by_name_and_stored_dtype(index: CheckpointIndex) -> None:
    kept = {"F16": torch.float32, "BF16": torch.float64}
    found = dict(
        read_tensors(index, dict.fromkeys(["I32", *kept]), dtype_of=lambda n, stored: kept.get(n, stored))
    )
    assert {name: tensor.dtype for name, tensor in found.items()} == {"I32": torch.int32, **kept}
    assert same_bits(found["F16"], every_bit("F16").float())


@pytest.mark.parametrize("wanted", [None, (0, [(0, 10)]), (1, [(0, 10)])])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_tensor_owns_storage_of_just_its_size(
    index: CheckpointIndex, wanted: Wanted, dtype: torch.dtype | None
) -> None:
    tensor = read_one(index, "big", wanted, dtype)
    assert tensor.is_contiguous()
    assert tensor.storage_offset() == 0
    assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_tensors_come_in_the_order_in_which_they_lie(index: CheckpointIndex) -> None:
    names = [name for name, _ in read_tensors(index, dict.fromkeys(reversed([*index.tensors])))]
    places = [(index.tensors[name].file, index.tensors[name].offset) for name in names]
    assert places == sorted(places)


def test_progress_adds_up_to_the_bytes_of_the_ranges(index: CheckpointIndex) -> None:
    steps: list[int] = []
    list(read_tensors(index, {"big": (1, [(0, 1024)]), "F32": None}, progress=steps.append))
    assert sum(steps) == BIG.nbytes // 2 + 128
    assert max(steps) <= WINDOW


@pytest.mark.parametrize("wanted", [(0, [(0, 1500)]), (1, [(0, 512), (1024, 1536)])])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_no_byte_is_read_that_is_not_wanted(
    index: CheckpointIndex, wanted: Wanted, dtype: torch.dtype | None
) -> None:
    before = bytes_read()
    read_one(index, "big", wanted, dtype)
    # short runs are copied from a mapping, which is not counted
    least = BIG.nbytes // 2 if wanted and wanted[0] == 0 else 0
    assert least <= bytes_read() - before <= 1.02 * BIG.nbytes // 2


def bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_name_that_is_not_there_is_refused_before_anything_is_read(index: CheckpointIndex) -> None:
    with pytest.raises(CheckpointError, match="lacks nothing, nowhere"):
        read_tensors(index, {"big": None, "nothing": None, "nowhere": None})


def moved(index: CheckpointIndex, name: str, file: Path) -> CheckpointIndex:
    return replace(index, tensors={name: replace(index.tensors[name], file=file)})


@pytest.mark.parametrize("wanted", [None, (1, [(0, 10)])])
def test_a_file_cut_after_its_header_was_read_is_named_with_the_tensor(
    index: CheckpointIndex, tmp_path: Path, wanted: Wanted
) -> None:
    big, cut = index.tensors["big"], tmp_path / "cut.safetensors"
    cut.write_bytes(big.file.read_bytes()[: big.offset + 100])
    message = f"tensor big cannot be read from {cut}: the file ends at byte {big.offset + 100}"
    with pytest.raises(CheckpointError, match=message):
        list(read_tensors(moved(index, "big", cut), {"big": wanted}))


def test_an_error_of_the_disk_is_named_with_the_tensor(index: CheckpointIndex) -> None:
    # the kernel answers EIO where a process has no memory, as a bad disk does
    bad = moved(index, "F32", Path("/proc/self/mem"))
    with pytest.raises(
        CheckpointError, match="tensor F32 cannot be read from /proc/self/mem: Input/output error"
    ):
        list(read_tensors(bad, {"F32": None}))


def test_a_file_that_went_away_is_named(index: CheckpointIndex, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone.safetensors cannot be read: No such file"):
        list(read_tensors(moved(index, "big", tmp_path / "gone.safetensors"), {"big": None}))


def test_files_are_closed_also_when_reading_is_given_up(index: CheckpointIndex) -> None:
    before = os.listdir("/proc/self/fd")
    reading = read_tensors(index, dict.fromkeys(index.tensors))
    next(reading)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del reading
    assert os.listdir("/proc/self/fd") == before
