"""Where weights live and when: on the device, in host memory, or on disk until they are needed.

Blocks that live elsewhere stream through a few buffers on the device. The buffers are allocated once; while
one block is computed with, a thread fills the next ones, and during the last block the first one again.

    with stream.block(i):
        ...                      # the parameters of block i are on the device
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn

from armillary.parallel.tensor import slot_of

ALIGNMENT = 256
"""Bytes; kernels want their operands aligned."""


class Source(Protocol):
    """Where this rank's part of a parameter is read from again."""

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """Fill `tensor`, which has the local shape, with this rank's part of parameter `name`."""
        ...


class RowSource(Protocol):
    """Where single rows of a whole parameter are read from."""

    def read_rows(self, name: str, rows: Sequence[tuple[int, int]], tensor: torch.Tensor) -> None:
        """Fill `tensor` with ranges of full rows of parameter `name`."""
        ...


class HostSource:
    """One copy of a rank's own ranges in host memory, pinned where there is a device to copy to."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device) -> None:
        pin = device.type == "cuda"
        # one after another, so that there are never two copies of more than one
        self._tensors = {name: tensor.cpu().pin_memory() if pin else tensor.cpu() for name, tensor in tensors}

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """See `Source`."""
        tensor.copy_(self._tensors[name], non_blocking=True)

    def tensor(self, name: str) -> torch.Tensor:
        """The copy itself."""
        return self._tensors[name]


@dataclass(frozen=True)
class Local:
    """A parameter of one rank without its values: what a buffer must have room for."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes in a buffer, so that what follows is aligned."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    def absent(self, device: torch.device) -> torch.Tensor:
        """What stands in its place while it is elsewhere: shape, dtype and device, and not-a-number for
        whoever computes with it."""
        return torch.full((), math.nan, device=device).to(self.dtype).expand(self.shape)


Block: TypeAlias = Sequence[Local]
"""The parameters of one block."""


@dataclass(frozen=True)
class MovedWeights:
    """The parameters of one rank that do not live on the device, and where they are read from."""

    away: Mapping[str, Local]
    source: Source
    rows: RowSource
    prefetch: int
    device: torch.device


class Blocks(Protocol):
    """The blocks of one pathway, wherever they live."""

    def block(self, number: int) -> AbstractContextManager[None]:
        """Within the context the parameters of a block are on the device."""
        ...

    def release(self) -> None:
        """The pathway is not needed for a while: give its memory back."""
        ...

    def close(self) -> None:
        """The pathway is not needed any more; its weights stay where they are."""
        ...


class ResidentBlocks:
    """All of them on the device, all the time."""

    def block(self, number: int) -> AbstractContextManager[None]:
        """See `Blocks`."""
        return nullcontext()

    def release(self) -> None:
        """See `Blocks`."""

    def close(self) -> None:
        """See `Blocks`."""


class BlockStream:
    """Streams blocks, in order and round and round, through `prefetch + 1` buffers.

    `blocks` maps the number of each block that streams to its parameters; others are on the device. A
    stream that was `release`d allocates its buffers again when it is used again.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Mapping[int, Block],
        source: Source,
        *,
        prefetch: int,
        device: torch.device,
    ) -> None:
        self._blocks = dict(blocks)
        self._order = sorted(blocks)
        self._source = source
        self._device = device
        self._slots = min(prefetch + 1, len(blocks))
        self._buffers: list[torch.Tensor] = []
        # made once: a step only puts them in and takes them out
        self._places = {n: [slot_of(model, local.name) for local in block] for n, block in blocks.items()}
        self._absent = {
            n: [nn.Parameter(local.absent(device), requires_grad=False) for local in block]
            for n, block in blocks.items()
        }
        self._present: dict[tuple[int, int], list[nn.Parameter]] = {}
        self._coming: dict[int, tuple[int, Future[None]]] = {}
        self._turn = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="armillary-weights")
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: dict[int, torch.cuda.Event] = {}
        self._computed: dict[int, torch.cuda.Event] = {}
        for number in self._order:
            self._put(number, self._absent[number])

    @contextmanager
    def block(self, number: int) -> Iterator[None]:
        """See `Blocks`."""
        if number not in self._blocks:
            yield
            return
        slot = self._arrive(number)
        for ahead in range(1, self._slots):
            following = self._order[(self._order.index(number) + ahead) % len(self._order)]
            if following not in self._coming:
                self._fetch(following)
        try:
            yield
        finally:
            self._put(number, self._absent[number])
            if self._copies is not None:
                self._computed[slot] = torch.cuda.current_stream(self._device).record_event()

    def release(self) -> None:
        """See `Blocks`."""
        self._forget_coming()
        if self._copies is not None:
            # the copies are only enqueued: whoever gets this memory next must come after them
            torch.cuda.current_stream(self._device).wait_stream(self._copies)
            self._computed.clear()
            self._copied.clear()
        self._present.clear()
        self._buffers.clear()

    def close(self) -> None:
        """See `Blocks`."""
        self.release()
        self._reader.shutdown()

    def _arrive(self, number: int) -> int:
        """Wait for a block and put it in place; returns the slot it is in."""
        self._allocate()
        if next(iter(self._coming), None) != number:  # the first of all, or a jump: what comes is not wanted
            self._forget_coming()
            self._fetch(number)
        slot, read = self._coming.pop(number)
        read.result()
        if self._copies is not None:
            # for this block's copies alone: those of the blocks behind it may go on
            torch.cuda.current_stream(self._device).wait_event(self._copied[slot])
        self._put(number, self._parameters(number, slot))
        return slot

    def _put(self, number: int, parameters: Sequence[nn.Parameter]) -> None:
        for (slots, leaf), parameter in zip(self._places[number], parameters, strict=True):
            slots[leaf] = parameter

    def _allocate(self) -> None:
        size = max(sum(local.room for local in block) for block in self._blocks.values())
        if self._buffers:
            return
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(self._slots)
        ]
        if self._copies is not None:
            # kernels that are enqueued may still use what this memory was before
            self._copies.wait_stream(torch.cuda.current_stream(self._device))

    def _fetch(self, number: int) -> None:
        # by turns, not by number: the last block and the first are neighbours and need different slots
        slot, self._turn = self._turn % self._slots, self._turn + 1
        self._coming[number] = slot, self._reader.submit(self._read, number, slot)

    def _read(self, number: int, slot: int) -> None:
        with torch.cuda.stream(self._copies):
            if event := self._computed.get(slot):
                event.wait()  # what was in this buffer has been computed with
            for local, tensor in zip(self._blocks[number], self._parameters(number, slot), strict=True):
                self._source.read_into(local.name, tensor.data)
            if self._copies is not None:
                self._copied[slot] = self._copies.record_event()

    def _parameters(self, number: int, slot: int) -> list[nn.Parameter]:
        """The parameters of a block as parts of a buffer."""
        if (number, slot) not in self._present:
            buffer, at, parts = self._buffers[slot], 0, []
            for local in self._blocks[number]:
                part = buffer[at : at + local.nbytes].view(local.dtype).view(local.shape)
                parts.append(nn.Parameter(part, requires_grad=False))
                at += local.room
            self._present[number, slot] = parts
        return self._present[number, slot]

    def _forget_coming(self) -> None:
        # waited for, since they write into buffers; that one could not be read concerns who wants it
        wait([read for _, read in self._coming.values()])
        self._coming.clear()
