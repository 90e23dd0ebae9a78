"""Blocks that live elsewhere: the right weights at the right time, in buffers that are allocated once."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from armillary.errors import CheckpointError, LayoutError, Problem
from armillary.parallel.residency import BlockStream, HostSource, Local, ResidentBlocks
from armillary.residency import Residency

WIDTH = 3


class Recorded(HostSource):
    """A source that tells what was read from it, and may fail."""

    def __init__(self, blocks: int) -> None:
        weights = ((f"{i}.weight", torch.full((WIDTH, WIDTH), float(i))) for i in range(blocks))
        super().__init__(weights, torch.device("cpu"))
        self.read: list[int] = []
        self.broken: set[int] = set()
        self.threads: set[str] = set()

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        number = int(name.partition(".")[0])
        self.read.append(number)
        self.threads.add(threading.current_thread().name)
        if number in self.broken:
            raise CheckpointError(Problem("checkpoint-read", f"block {number} is gone", "mend the disk"))
        super().read_into(name, tensor)


class Streamed:
    """A stack of layers whose weights are their numbers."""

    def __init__(self, blocks: int, prefetch: int = 1, streamed: Sequence[int] | None = None) -> None:
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(blocks)))
        self.source = Recorded(blocks)
        self.stream = BlockStream(
            self.model,
            {
                i: [Local(f"{i}.weight", (WIDTH, WIDTH), torch.float32)]
                for i in (range(blocks) if streamed is None else streamed)
            },
            self.source,
            prefetch=prefetch,
            device=torch.device("cpu"),
        )

    def weight(self, number: int) -> torch.Tensor:
        return self.model.get_submodule(str(number)).weight  # type: ignore[return-value]

    def visit(self, number: int) -> int:
        """Go through a block; returns where its weights lie."""
        with self.stream.block(number):
            assert (self.weight(number) == number).all()
            return self.weight(number).data_ptr()

    def step(self) -> list[int]:
        return [self.visit(number) for number in range(len(self.model))]


def test_a_step_finds_every_blocks_weights_and_leaves_none_behind() -> None:
    streamed = Streamed(4)
    streamed.step()
    assert all(streamed.weight(number).isnan().all() for number in range(4))


@pytest.mark.parametrize("prefetch", [1, 2, 3, 9])
def test_buffers_are_allocated_once_and_repeat(prefetch: int) -> None:
    streamed = Streamed(6, prefetch)
    places = {place for _ in range(5) for place in streamed.step()}
    assert len(places) == min(prefetch + 1, 6)
    assert all(place % 16 == 0 for place in places)


def test_the_first_block_of_the_next_step_is_read_during_the_last_of_this_one() -> None:
    streamed = Streamed(4)
    for _ in range(2):
        streamed.step()
    with streamed.stream.block(0):
        pass
    assert streamed.source.read[:9] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_reading_is_the_work_of_another_thread() -> None:
    streamed = Streamed(3)
    streamed.step()
    assert threading.current_thread().name not in streamed.source.threads


def test_resident_blocks_are_left_alone() -> None:
    streamed = Streamed(4, streamed=[2, 3])
    with torch.no_grad():
        for number in (0, 1):
            streamed.weight(number).fill_(number)
    for _ in range(2):
        streamed.step()
    assert set(streamed.source.read) == {2, 3}


@given(
    blocks=st.integers(1, 6),
    prefetch=st.integers(1, 4),
    visits=st.lists(st.one_of(st.integers(0, 5), st.just("release")), max_size=25),
)
@settings(max_examples=150, deadline=None)
def test_any_order_of_blocks_finds_the_right_weights(
    blocks: int, prefetch: int, visits: list[int | str]
) -> None:
    streamed = Streamed(blocks, prefetch)
    for visit in visits:
        if isinstance(visit, str):
            streamed.stream.release()
        else:
            streamed.visit(visit % blocks)


def test_a_step_that_ends_early_does_not_spoil_the_next() -> None:
    streamed = Streamed(4, prefetch=2)
    for stop in range(4):
        for number in range(stop):
            streamed.visit(number)
        with pytest.raises(KeyboardInterrupt), streamed.stream.block(stop):
            raise KeyboardInterrupt
        assert streamed.weight(stop).isnan().all()
        streamed.step()


def test_a_released_stream_gives_its_memory_back_and_can_be_used_again() -> None:
    streamed = Streamed(4)
    streamed.step()
    streamed.stream.release()
    assert not streamed.stream._buffers
    streamed.step()
    assert len(streamed.stream._buffers) == 2


def test_an_error_of_the_reading_thread_is_told_where_the_block_is_needed_and_may_pass() -> None:
    streamed = Streamed(4)
    streamed.source.broken = {2}
    streamed.visit(0)
    streamed.visit(1)  # during which block 2 was read ahead
    with pytest.raises(CheckpointError, match="block 2 is gone"):
        streamed.visit(2)
    streamed.source.broken = set()
    streamed.step()


def test_an_error_about_a_block_that_is_not_wanted_any_more_is_no_error() -> None:
    streamed = Streamed(4)
    streamed.source.broken = {1}
    streamed.visit(0)
    streamed.visit(3)
    streamed.stream.release()
    streamed.visit(2)


def test_blocks_of_several_dtypes_and_sizes_share_aligned_buffers() -> None:
    tensors = {
        "0.weight": torch.randn(5, 3),
        "0.bias": torch.randn(5).bfloat16(),
        "1.weight": torch.randn(2, 5).double(),
        "1.bias": torch.tensor([1, 2, 3], dtype=torch.int8),
    }
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    locals_ = [Local(name, tuple(t.shape), t.dtype) for name, t in tensors.items() if t.is_floating_point()]
    blocks = {0: locals_[:2], 1: locals_[2:]}
    source = HostSource(tensors.items(), torch.device("cpu"))
    stream = BlockStream(model, blocks, source, prefetch=1, device=torch.device("cpu"))
    for number, block in blocks.items():
        with stream.block(number):
            for local in block:
                values = model.get_parameter(local.name)
                assert values.dtype == tensors[local.name].dtype
                assert torch.equal(values, tensors[local.name])
                assert values.data_ptr() % 64 == 0


def test_weights_that_are_elsewhere_have_a_shape_and_no_memory() -> None:
    absent = Local("weight", (1000, 1000), torch.bfloat16).absent(torch.device("cpu"))
    assert (absent.shape, absent.dtype) == ((1000, 1000), torch.bfloat16)
    assert absent.isnan().all()
    assert absent.untyped_storage().nbytes() == 2


def test_resident_blocks_need_nothing() -> None:
    blocks = ResidentBlocks()
    with blocks.block(3):
        blocks.release()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefetch": 0, "offload": "disk"}, "prefetch=0 is no number of blocks; use 1 or more"),
        ({"prefetch": True, "offload": "disk"}, "prefetch=True is no number"),
        ({"resident_layers": -1, "offload": "disk"}, "resident_layers=-1 is no number of blocks; use 0 or"),
        ({"offload": "cloud"}, "offload='cloud' is no place for weights; use host, disk or auto"),
        ({"evict": "device"}, "evict='device' is no place for weights"),
        ({"prefetch": 2}, "prefetch=2 changes nothing while all weights stay on the device; add offload or"),
        ({"resident_layers": 2, "evict": "disk"}, "resident_layers=2 changes nothing without offload"),
    ],
)
def test_a_residency_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Residency(**fields)


def test_every_problem_of_a_residency_is_told_at_once() -> None:
    with pytest.raises(LayoutError) as caught:
        Residency(offload="cloud", evict="moon", prefetch=0)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3


def test_auto_is_host_memory_where_there_is_a_device_and_the_disk_where_there_is_none() -> None:
    home = Residency(offload="auto", evict="auto")
    assert (home.on("cuda").offload, home.on("cuda").evict) == ("host", "host")
    assert (home.on("cpu").offload, home.on("cpu").evict) == ("disk", "disk")
    assert Residency(offload="host").on("cpu").offload == "host"
    assert not Residency().moves
