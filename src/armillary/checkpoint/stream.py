"""Reads the wanted ranges of a checkpoint's tensors, and nothing more, into tensors of their own."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from armillary.checkpoint.dtypes import DTYPES
from armillary.checkpoint.header import TensorEntry, several
from armillary.checkpoint.index import CheckpointIndex
from armillary.checkpoint.memory import PIECE, Resident
from armillary.checkpoint.slices import Range, Rows, Segment, byte_ranges, local_shape, rows_of, windows
from armillary.errors import CheckpointError, Problem

Wanted: TypeAlias = tuple[int, Sequence[Range]] | None
"""(dim, ranges) of a shard; None for a whole tensor."""
Fill: TypeAlias = Callable[[memoryview, Resident | None], None]
"""Puts the bytes of a window into a view of that size, whose memory may have to be made resident first."""

WINDOW = 8 << 20
"""Bytes read between two calls of `progress`; also the staging buffer, the only memory beside the tensors."""
SMALL_RUN = 1 << 20
"""Bytes of a row below which it is copied from a mapping of the file instead of read."""
READ_AHEAD = 1 << 20
"""Linux reads ahead at most a few MiB for one hint, so they are given in steps."""


def read_tensors(
    index: CheckpointIndex,
    wanted: Mapping[str, Wanted],
    *,
    dtype_of: Callable[[str, torch.dtype], torch.dtype] = lambda name, stored: stored,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, local tensor) for each wanted tensor, in the order in which they lie in the files.

    Each tensor owns its storage, which is exactly as large as it is. Besides the tensors at most
    8 MiB are in use, whatever `dtype_of(name, stored dtype)` and `device` ask for.
    `progress` is called with the number of bytes read since the last call.

    Raises:
        CheckpointError: a wanted tensor is not there (at the call), or cannot be read (while iterating).
    """
    if unknown := [name for name in wanted if name not in index.tensors]:
        raise CheckpointError(
            Problem(
                "missing-tensors", f"{index.folder} lacks {several(unknown)}", "compare plan and checkpoint"
            )
        )
    entries = sorted((index.tensors[name] for name in wanted), key=lambda entry: (entry.file, entry.offset))
    reader = _Reader(torch.device(device), dtype_of, progress or (lambda nbytes: None))
    return _read_files(entries, wanted, reader)


def _read_files(
    entries: Sequence[TensorEntry], wanted: Mapping[str, Wanted], reader: _Reader
) -> Iterator[tuple[str, torch.Tensor]]:
    for path, of_file in groupby(entries, key=lambda entry: entry.file):
        descriptor = _open(path)
        try:
            for entry in of_file:
                yield entry.name, reader.read(descriptor, entry, wanted[entry.name])
        finally:
            os.close(descriptor)


class _Reader:
    """Reads one tensor after another; holds the staging buffer for those that are cast or moved."""

    def __init__(
        self,
        device: torch.device,
        dtype_of: Callable[[str, torch.dtype], torch.dtype],
        progress: Callable[[int], None],
    ) -> None:
        self.device = device
        self.dtype_of = dtype_of
        self.progress = progress

    @cached_property
    def staging(self) -> torch.Tensor:
        # pinned, because a copy to the device from ordinary memory goes through a pinned one anyway
        return torch.empty(WINDOW, dtype=torch.uint8, device="cpu", pin_memory=self.device.type == "cuda")

    def read(self, descriptor: int, entry: TensorEntry, wanted: Wanted) -> torch.Tensor:
        """One local tensor in memory of its own."""
        stored = getattr(torch, DTYPES[entry.dtype].name)
        dim, ranges = wanted or _whole(entry)
        shape = local_shape(entry.shape, dim, ranges)
        tensor = torch.empty(shape, dtype=self.dtype_of(entry.name, stored), device=self.device)
        self.read_into(tensor, descriptor, entry, wanted, fresh=True)
        return tensor

    def read_into(
        self,
        tensor: torch.Tensor,
        descriptor: int,
        entry: TensorEntry,
        wanted: Wanted,
        fresh: bool = False,
    ) -> None:
        """Fill a contiguous local tensor window by window, straight into its memory where that can be.

        `fresh`: nothing has touched that memory yet.
        """
        stored = getattr(torch, DTYPES[entry.dtype].name)
        straight = tensor.dtype == stored and self.device.type == "cpu"
        target = tensor.flatten()
        bytes_of_target = _bytes_of(target if straight else self.staging)
        resident = Resident(tensor.data_ptr(), tensor.nbytes) if fresh and straight else None
        done = 0
        for fill, nbytes in _windows(descriptor, entry, wanted):
            start = done if straight else 0
            fill(bytes_of_target[start : start + nbytes], resident)
            if not straight:
                elements = self.staging[:nbytes].view(stored)
                target[done // stored.itemsize :][: len(elements)].copy_(elements)
            done += nbytes
            self.progress(nbytes)


class WeightFiles:
    """A checkpoint's files, kept open: a rank reads its ranges of single tensors again and again."""

    def __init__(self, index: CheckpointIndex, wanted: Mapping[str, Wanted], device: torch.device) -> None:
        self._entries = {name: index.tensors[name] for name in wanted}
        self._wanted = dict(wanted)
        self._reader = _Reader(device, lambda name, stored: stored, lambda nbytes: None)
        self._descriptors = {path: _open(path) for path in {entry.file for entry in self._entries.values()}}
        self._alone = threading.Lock()
        weakref.finalize(self, _close_all, list(self._descriptors.values()))

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """This rank's ranges of a tensor into `tensor`, which is contiguous and has the local shape.

        Raises:
            CheckpointError: the file cannot be read any more.
        """
        self._read(name, tensor, self._wanted[name])

    def read_rows(self, name: str, rows: Sequence[Range], tensor: torch.Tensor) -> None:
        """Some full rows (dim 0) of a tensor, whatever this rank's own ranges are."""
        self._read(name, tensor, (0, rows))

    def _read(self, name: str, tensor: torch.Tensor, wanted: Wanted) -> None:
        entry = self._entries[name]
        with self._alone:  # one staging buffer for all who read: the threads of both pathways and the prompt
            self._reader.read_into(tensor, self._descriptors[entry.file], entry, wanted)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _whole(entry: TensorEntry) -> tuple[int, Sequence[Range]]:
    return 0, [(0, entry.shape[0] if entry.shape else 1)]


def _windows(descriptor: int, entry: TensorEntry, wanted: Wanted) -> Iterator[tuple[Fill, int]]:
    """What fills one window after another of the local tensor, and with how many bytes."""
    dim, ranges = wanted or _whole(entry)
    itemsize = DTYPES[entry.dtype].itemsize
    rows = rows_of(entry.shape, itemsize, dim, ranges)
    if rows.count > 1 and 0 < rows.wanted < min(rows.nbytes, SMALL_RUN):
        yield from _mapped_windows(descriptor, entry, rows)
        return
    for window in windows(byte_ranges(entry.shape, itemsize, dim, ranges), WINDOW):
        yield partial(_read, descriptor, entry, window), sum(length for _, length in window)


def _read(
    descriptor: int,
    entry: TensorEntry,
    window: Sequence[Segment],
    view: memoryview,
    resident: Resident | None,
) -> None:
    """Read the segments of a window one after another into `view`."""
    at = 0
    for offset, nbytes in window:
        end, place = at + nbytes, entry.offset + offset
        while at < end:
            step = min(end, at + PIECE)
            if resident:
                resident.extend(step - at)
            try:
                found = os.preadv(descriptor, (view[at:step],), place)
            except OSError as error:
                raise _unreadable(entry, str(error.strerror)) from error
            if not found:
                raise _cut(entry, place)
            at, place = at + found, place + found


def _mapped_windows(descriptor: int, entry: TensorEntry, rows: Rows) -> Iterator[tuple[Fill, int]]:
    """Short runs of many rows are copied from a mapping: a system call for each would take as long as the
    copy, and reading through the gaps instead would read twice to eight times as much."""
    start = entry.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    end = entry.offset + rows.count * rows.nbytes
    # what is mapped beyond the end of a file kills the process that touches it
    if (size := os.fstat(descriptor).st_size) < end:
        raise _cut(entry, size)
    try:
        mapping = mmap.mmap(descriptor, end - start, prot=mmap.PROT_READ, offset=start)
    except OSError as error:
        raise _unreadable(entry, str(error.strerror)) from error
    stored = np.frombuffer(mapping, np.uint8, offset=entry.offset - start).reshape(rows.count, rows.nbytes)
    per_window = max(1, WINDOW // rows.wanted)
    blocks = [stored[first : first + per_window] for first in range(0, rows.count, per_window)]
    place = entry.offset
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block is blocks[0]:
            _fetch(descriptor, place, block.nbytes)
        place += block.nbytes
        if after is not None:
            _fetch(descriptor, place, after.nbytes)
        yield partial(_copy_runs, block, rows), len(block) * rows.wanted


def _copy_runs(block: npt.NDArray[np.uint8], rows: Rows, view: memoryview, resident: Resident | None) -> None:
    """Copy the wanted runs of some rows into `view`, a piece at a time."""
    local = np.frombuffer(view, np.uint8).reshape(len(block), rows.wanted)
    per_piece = max(1, PIECE // rows.wanted)
    for first in range(0, len(block), per_piece):
        piece = local[first : first + per_piece]
        if resident:
            resident.extend(piece.nbytes)
        at = 0
        for offset, nbytes in rows.runs:
            piece[:, at : at + nbytes] = block[first : first + per_piece, offset : offset + nbytes]
            at += nbytes


def _fetch(descriptor: int, start: int, nbytes: int) -> None:
    """Ask the kernel to have these bytes soon.

    It takes short runs for random reads and would fetch each when asked: from a cold disk 512 MiB in
    runs of 4 KiB took 8 s so and 0.8 s with the hint.
    """
    if hasattr(os, "posix_fadvise") and not _in_memory(descriptor, start + nbytes - 1):
        for at in range(start, start + nbytes, READ_AHEAD):
            os.posix_fadvise(descriptor, at, READ_AHEAD, os.POSIX_FADV_WILLNEED)


def _in_memory(descriptor: int, place: int) -> bool:
    """Whether the page cache has that byte; a hint would only cost time then, a tenth of the read's."""
    try:
        return os.preadv(descriptor, (bytearray(1),), place, os.RWF_NOWAIT) == 1
    except OSError:  # it has not, or the file system cannot say
        return False


def _bytes_of(flat: torch.Tensor) -> memoryview:
    return flat.view(torch.uint8).numpy().data


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(
            Problem("checkpoint-file", f"{path} cannot be read: {error.strerror}", "check the path")
        ) from error


def _cut(entry: TensorEntry, place: int) -> CheckpointError:
    return _unreadable(entry, f"the file ends at byte {place}: it was cut after its header was read")


def _unreadable(entry: TensorEntry, why: str) -> CheckpointError:
    what = f"tensor {entry.name} cannot be read from {entry.file}: {why}"
    return CheckpointError(
        Problem("checkpoint-read", what, "see that the disk is well and the file is whole")
    )
