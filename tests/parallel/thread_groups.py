"""A group whose ranks are threads of one process, so that a property test may start hundreds of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from armillary.parallel.collectives import Group
from armillary.parallel.context import Context

T = TypeVar("T")
PATIENCE = 60.0


class Board:
    """Where the ranks of one group put what they send."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=PATIENCE)
        self.slots: list[Any] = [None] * size

    def swap(self, rank: int, mine: T) -> list[T]:
        self.slots[rank] = mine
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone


@dataclass(frozen=True)
class ThreadGroup(Group):
    """Keeps the promises of `Group`, and holds callers to theirs: shapes are what the other end said."""

    board: Board | None = None

    def _swap(self, mine: T) -> list[T]:
        assert self.board is not None, "a thread's group has a board"
        return self.board.swap(self.rank, mine)

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], dim: int) -> torch.Tensor:
        if self.size == 1:
            return tensor
        parts = self._swap(tensor)
        assert [part.shape[dim] for part in parts] == list(sizes)
        return torch.cat(parts, dim)

    def exchange(self, pieces: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        received = [of_peer[self.rank] for of_peer in self._swap(list(pieces))]
        assert [tuple(piece.shape) for piece in received] == [tuple(shape) for shape in shapes]
        return received

    def rotate(self, tensor: torch.Tensor, shape: Sequence[int]) -> Callable[[], torch.Tensor]:
        arrived = self._swap(tensor)[(self.rank - 1) % self.size]
        assert tuple(arrived.shape) == tuple(shape)
        return lambda: arrived


def on_threads(outer: str, outer_size: int, ulysses: int, work: Callable[[Context], T]) -> list[T]:
    """`work` on every position of a context mesh, by position."""
    inner = [Board(ulysses) for _ in range(outer_size)]
    across = [Board(outer_size) for _ in range(ulysses)]

    def on_one(position: int) -> T:
        o, u = divmod(position, ulysses)
        groups = {
            "ring": Group("ring"),
            "gather": Group("gather"),
            "ulysses": ThreadGroup("ulysses", ulysses, u, board=inner[o]),
            outer: ThreadGroup(outer, outer_size, o, board=across[u]),
        }
        return work(Context.of(groups))

    positions = outer_size * ulysses
    with ThreadPoolExecutor(positions) as threads:
        return list(threads.map(on_one, range(positions)))
