"""Every collective of the library. A `Group` is one axis of the mesh as one rank sees it.

Shapes and dtypes are the same on all ranks by construction in the hot path; what could differ (weights
made elsewhere, inputs, seeds) is compared with `agree` first, so that a difference is an error that
names it and never a hang or corrupt data.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from armillary.engine.heartbeat import Heartbeat, current_heartbeat
from armillary.errors import EngineError, Problem

T = TypeVar("T")


@dataclass
class Traffic:
    """What one rank has sent on one axis for a model's computation; what is said to compare ranks is not
    counted."""

    nbytes: int = 0
    """An all-reduce counts as what the best one sends: 2 (n - 1) / n of the tensor."""


@dataclass(frozen=True)
class Group:
    """One axis of the mesh: its degree, this rank's place on it and the process group behind it.

    A group of one needs no process group, and its collectives return at once.
    """

    axis: str
    size: int = 1
    rank: int = 0
    process_group: dist.ProcessGroup | None = None
    members: tuple[int, ...] = ()
    """Global ranks in mesh order. torch orders a process group by global rank, whatever order it is given."""
    heartbeat: Heartbeat = field(default_factory=current_heartbeat, repr=False, compare=False)
    traffic: Traffic = field(default_factory=Traffic, repr=False, compare=False)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over the group, in place; every rank gets the same bits."""
        if self.size > 1:
            _refuse_autograd(tensor)
            self.traffic.nbytes += 2 * (self.size - 1) * tensor.nbytes // self.size
            with self.heartbeat.waiting():
                dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int], dim: int) -> torch.Tensor:
        """Join the ranks' tensors along `dim`, where rank r has `sizes[r]`; sizes may differ.

        Ranks send `max(sizes)` each, since gloo gathers equal shapes only; the padding is cut off.
        """
        if self.size == 1:
            return tensor
        _refuse_autograd(tensor)
        sent = tensor.movedim(dim, 0).contiguous()
        if sent.shape[0] < max(sizes):
            sent = torch.cat([sent, sent.new_zeros(max(sizes) - sent.shape[0], *sent.shape[1:])])
        received = [torch.empty_like(sent) for _ in range(self.size)]
        self.traffic.nbytes += (self.size - 1) * sent.nbytes
        with self.heartbeat.waiting():
            dist.all_gather(received, sent, group=self.process_group)
        parts = zip(self._in_mesh_order(received), sizes, strict=True)
        # contiguous, as the output of a whole layer is: callers may `view` it
        return torch.cat([part[:size] for part, size in parts]).movedim(0, dim).contiguous()

    def exchange(self, pieces: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Give `pieces[r]` to rank r and take one of `shapes[r]` from it; sizes may differ, also be 0."""
        if self.size == 1:
            return list(pieces)
        _refuse_autograd(pieces[0])
        order = self._group_order()
        sent = torch.cat([pieces[place].reshape(-1) for place in order])
        counts = [math.prod(shape) for shape in shapes]
        received = sent.new_empty(sum(counts))
        self.traffic.nbytes += sent.nbytes - pieces[self.rank].nbytes
        with self.heartbeat.waiting():
            dist.all_to_all_single(
                received,
                sent,
                output_split_sizes=[counts[place] for place in order],
                input_split_sizes=[pieces[place].numel() for place in order],
                group=self.process_group,
            )
        parts = dict(zip(order, received.split([counts[place] for place in order]), strict=True))
        return [parts[place].view(tuple(shape)) for place, shape in enumerate(shapes)]

    def rotate(self, tensor: torch.Tensor, shape: Sequence[int]) -> Callable[[], torch.Tensor]:
        """Pass `tensor` to the next rank and take one of `shape` from the one before.

        Returns at once; the function it returns waits and gives what arrived, so that work can be done
        meanwhile.
        """
        _refuse_autograd(tensor)
        sent, arrived = tensor.contiguous(), tensor.new_empty(tuple(shape))
        following = self.members[(self.rank + 1) % self.size]
        previous = self.members[(self.rank - 1) % self.size]
        self.traffic.nbytes += sent.nbytes
        operations = [
            dist.P2POp(dist.isend, sent, following, self.process_group),
            dist.P2POp(dist.irecv, arrived, previous, self.process_group),
        ]
        # both ends know the sizes, so an empty tensor is neither sent nor waited for
        operations = [operation for operation in operations if operation.tensor.numel()]
        requests = dist.batch_isend_irecv(operations) if operations else []

        def arrival() -> torch.Tensor:
            with self.heartbeat.waiting():
                for request in requests:
                    request.wait()
            return arrived

        return arrival

    def collect(self, tensor: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor] | None:
        """Bring every rank's tensor to the first rank, where rank r has shape `shapes[r]`.

        Returns the tensors in rank order on the first rank, None on the others.
        """
        if self.size == 1:
            return [tensor]
        with self.heartbeat.waiting():
            if self.rank > 0:
                dist.send(tensor.contiguous(), dst=self.members[0], group=self.process_group)
                return None
            collected = [tensor]
            for peer in range(1, self.size):
                part = torch.empty(tuple(shapes[peer]), dtype=tensor.dtype, device=tensor.device)
                dist.recv(part, src=self.members[peer], group=self.process_group)
                collected.append(part)
        return collected

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        if self.size > 1:
            with self.heartbeat.waiting():
                dist.barrier(group=self.process_group)

    def share(self, value: Any) -> list[Any]:
        """Every rank's `value`, in rank order, on every rank; any object that pickles, of any size."""
        if self.size == 1:
            return [value]
        everyone: list[Any] = [None] * self.size
        with self.heartbeat.waiting():
            dist.all_gather_object(everyone, value, group=self.process_group)
        return self._in_mesh_order(everyone)

    def _group_order(self) -> list[int]:
        """The places on the axis, in the order in which the process group has its ranks."""
        assert self.process_group is not None, "a group of several ranks has a process group"
        return [self.members.index(rank) for rank in dist.get_process_group_ranks(self.process_group)]

    def _in_mesh_order(self, gathered: Sequence[T]) -> list[T]:
        """What the ranks of the process group gave, by their place on the axis."""
        assert self.process_group is not None, "a group of several ranks has a process group"
        return [gathered[dist.get_group_rank(self.process_group, member)] for member in self.members]

    def agree(self, what: str, facts: Mapping[str, object]) -> None:
        """Raise `EngineError` on every rank unless all ranks hold equal `facts`; the first few are named."""
        _refuse_differences(self.share(dict(facts)), f"axis {self.axis}", what)

    def tell(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """Every rank's few whole numbers, as many from each, by their place on the axis."""
        if self.size == 1:
            return [[*numbers]]
        mine = torch.tensor(numbers, device=device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with self.heartbeat.waiting():
            dist.all_gather(everyone, mine, group=self.process_group)
        return [told.tolist() for told in self._in_mesh_order(everyone)]

    def highest(self, numbers: torch.Tensor) -> None:
        """Replace each number by the highest that a rank of the group has."""
        with self.heartbeat.waiting():
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.process_group)


def agree_over(groups: Sequence[Group], what: str, facts: Mapping[str, object], device: torch.device) -> None:
    """`Group.agree` for all ranks that `groups` connect, one axis after another; for every call of a model,
    since ranks that agree exchange two numbers a group and nothing is pickled."""
    digest = zlib.crc32(repr(facts).encode())
    bounds = torch.tensor([digest, -digest], device=device)
    for group in groups:
        group.highest(bounds)
    if bounds[0] == -bounds[1]:
        return
    everyone = [dict(facts)]
    for group in groups:  # each rank passes on what it has heard, so that all hear of all
        everyone = [one for heard in group.share(everyone) for one in heard]
    _refuse_differences(everyone, "axes " + " and ".join(group.axis for group in groups), what)


def _refuse_differences(everyone: Sequence[Mapping[str, object]], where: str, what: str) -> None:
    keys = dict.fromkeys(key for one in everyone for key in one)
    differing = {
        key: values for key in keys if len(set(map(repr, values := [one.get(key) for one in everyone]))) > 1
    }
    if differing:
        shown = "; ".join(f"{key} is {held}" for key, held in list(differing.items())[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise EngineError(
            Problem(
                "ranks-agree",
                f"the {len(everyone)} ranks of {where} differ in {what}: {shown}{more}",
                "give every rank the same",
            )
        )


def _refuse_autograd(tensor: torch.Tensor) -> None:
    # torch would warn and go on, with gradients of this rank's part alone
    if tensor.requires_grad:
        raise EngineError(
            Problem(
                "no-autograd",
                "a sharded model computes no gradients: its reduces are not differentiable",
                "call it under torch.no_grad(), with inputs that require no gradient",
            )
        )
