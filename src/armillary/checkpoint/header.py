"""The header of one safetensors file: what tensors it holds and where, without reading them.

A file is 8 bytes (the header's length, little endian), the header (JSON: name -> dtype, shape,
data_offsets) and the data, which the tensors fill exactly once from its first byte to its last.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from armillary.checkpoint.dtypes import DTYPES
from armillary.errors import CheckpointError, Problem

LENGTH_BYTES = 8
LONGEST_HEADER = 100_000_000
"""The format's own limit, so that a damaged length does not make us read gigabytes."""

LOOKS_LIKE = {
    b"version https://git-lfs": ("a git-lfs pointer", "fetch the file itself: git lfs pull"),
    b"PK\x03\x04": ("a pickle saved by torch", "convert it to safetensors"),
    b"\x80\x02\x8a": ("a pickle saved by torch", "convert it to safetensors"),
    b"\x80\x04\x95": ("a pickle", "convert it to safetensors"),
    b"GGUF": ("a GGUF file", "use the model's safetensors files"),
    b"<!DOCTYPE": ("a web page", "download the file again, logged in if the repo is gated"),
    b"<html": ("a web page", "download the file again, logged in if the repo is gated"),
    bytes(LENGTH_BYTES): ("zeros, as an unfinished download leaves them", "download the file again"),
}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies. `offset` counts bytes from the beginning of `file`."""

    name: str
    file: Path
    dtype: str
    """safetensors code: "F32", "BF16", "F8_E4M3"."""
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of one file, in the order in which they lie in it.

    Reads the first 8 bytes and the header, nothing more.

    Raises:
        CheckpointError: with everything that is wrong with the file.
    """
    header, data_start, size = _read_json(path)
    entries: list[TensorEntry] = []
    problems: list[Problem] = []
    for name, fields in header.items():
        try:
            entries.append(_entry(name, fields, path, data_start))
        except CheckpointError as error:
            problems.extend(error.problems)
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    if problems := problems or list(_layout_problems(entries, path, data_start, size)):
        raise CheckpointError(problems)
    return tuple(entries)


def several(names: Iterable[str], shown: int = 5) -> str:
    """ "a, b, c and 12 more": long lists in messages."""
    listed = list(names)
    rest = len(listed) - shown
    return ", ".join(listed[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _read_json(path: Path) -> tuple[Mapping[str, Any], int, int]:
    """The header without its metadata, the offset of the data and the size of the file."""
    if path.exists() and not path.is_file():  # a pipe would never answer
        raise CheckpointError(_bad_file(path, "is no ordinary file", "download the file again"))
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(LENGTH_BYTES)
            length = int.from_bytes(start, "little")
            if length > min(LONGEST_HEADER, size - LENGTH_BYTES):
                what = f"its first 8 bytes declare a header of {length} bytes, and the file has {size}"
                raise CheckpointError(_not_safetensors(path, start + file.read(LENGTH_BYTES * 2), what))
            text = file.read(length)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise CheckpointError(_bad_file(path, what, "check the path and its permissions")) from error
    try:
        header = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        what = f"its header is not JSON ({error})"
        raise CheckpointError(_not_safetensors(path, start + text, what)) from error
    if not isinstance(header, dict):
        raise CheckpointError(_not_safetensors(path, start, "its header is not a JSON object"))
    header.pop("__metadata__", None)
    return header, LENGTH_BYTES + length, size


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{several(name for name, count in counts.items() if count > 1)} named twice")
    return fields


def _entry(name: str, fields: Any, path: Path, data_start: int) -> TensorEntry:
    """One tensor's entry; raises if it contradicts itself."""

    def refuse(what: str, fix: str = "") -> CheckpointError:
        return CheckpointError(_bad_tensor(path, name, what, fix))

    try:
        code, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
        dtype = DTYPES.get(code)
    except (TypeError, KeyError, ValueError):
        raise refuse("lacks its dtype, shape or data_offsets") from None
    if dtype is None:
        raise refuse(f"has the unknown dtype {code!r}", f"known are {', '.join(DTYPES)}")
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))):
        raise refuse(f"has shape {shape} and offsets {begin}:{end}, which must be whole numbers from 0")
    if begin > end:
        raise refuse(f"ends before it begins: its offsets are {begin}:{end}")
    if code == "F4":  # the file counts values; torch's type, and so our shape, counts bytes of two
        shape = [*shape[:-1], shape[-1] // 2] if shape else shape
    nbytes = prod(shape) * dtype.itemsize
    if end - begin != nbytes:
        raise refuse(f"has {end - begin} bytes where shape {fields['shape']} of {code} needs {nbytes}")
    return TensorEntry(name, path, code, tuple(shape), data_start + begin, nbytes)


def _layout_problems(
    entries: Sequence[TensorEntry], path: Path, data_start: int, size: int
) -> Iterator[Problem]:
    """Tensors that overlap, leave a hole, or end elsewhere than the file does."""
    end, before = data_start, "the header"
    for entry in entries:
        if entry.offset != end:
            what = "overlaps" if entry.offset < end else "leaves a hole after"
            yield _bad_tensor(path, entry.name, f"{what} {before}: byte {entry.offset} should be {end}")
        end, before = max(end, entry.offset + entry.nbytes), entry.name
    if size < end:
        cut = several(entry.name for entry in entries if entry.offset + entry.nbytes > size)
        what = f"is truncated: {end} bytes expected, {size} found; what is cut: {cut}"
        yield _bad_file(path, what, "download the file again")
    elif size > end:
        yield _bad_file(path, f"has {size - end} bytes after its last tensor", "download the file again")


def _not_safetensors(path: Path, start: bytes, otherwise: str) -> Problem:
    """Names what the file looks like by its first bytes, else says what is wrong with its header."""
    for magic, (kind, fix) in LOOKS_LIKE.items():
        if start.startswith(magic):
            return _bad_file(path, f"is not a safetensors file but {kind}", fix)
    return _bad_file(path, f"is not a safetensors file: {otherwise}", "download the file again")


def _bad_file(path: Path, what: str, fix: str) -> Problem:
    return Problem("checkpoint-file", f"{path} {what}", fix)


def _bad_tensor(path: Path, name: str, what: str, fix: str = "") -> Problem:
    fix = fix or "the file is damaged or was written wrongly, get it again"
    return Problem("checkpoint-tensor", f"tensor {name} of {path} {what}", fix)
