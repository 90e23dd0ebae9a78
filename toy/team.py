"""Training on one or several processes: each takes its share of a batch, and gradients are averaged."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn import Parameter


@dataclass(frozen=True)
class Team:
    """This process's place among `size` of them; the one of rank 0 saves and reports."""

    rank: int
    size: int

    def share(self, count: int) -> range:
        """The samples of a batch of `count` that are this process's."""
        return range(self.rank, count, self.size)

    def noise(self, like: Tensor, step: int) -> Tensor:
        """Gaussian noise of a tensor's shape, other for every step and process."""
        generator = torch.Generator().manual_seed(step * self.size + self.rank)
        return torch.randn(like.shape, generator=generator)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def average_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Leaves in every process the mean of all processes' gradients."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.size == 1:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        pieces = (flat / self.size).split([gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))


def run(train: Callable[[Path, Team], None], description: str | None) -> None:
    """The command line of a training script: a folder to write into, and a number of processes."""
    parser = ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.processes == 1:
        _settle()
        train(options.out, Team(0, 1))
        return
    with TemporaryDirectory() as folder:
        arguments = (train, options.out, options.processes, f"{folder}/store")
        spawn(_join, arguments, nprocs=options.processes)


def _settle() -> None:
    torch.set_num_threads(1)
    # over plain ground many values fade to almost nothing, and arithmetic on those is slow
    torch.set_flush_denormal(True)


def _join(rank: int, train: Callable[[Path, Team], None], out: Path, size: int, store: str) -> None:
    _settle()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the processes are on one machine: nothing listens beyond it
    shared = dist.FileStore(store, size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=size)
    train(out, Team(rank, size))
    dist.destroy_process_group()
