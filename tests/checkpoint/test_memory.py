"""Memory made resident ahead of the reads keeps what it holds and goes no further than its block."""

import ctypes
import platform

import pytest
import torch

from armillary.checkpoint.memory import PIECE, Resident


def test_it_grows_in_pieces_up_to_the_block() -> None:
    block = torch.empty(2 * PIECE + 100, dtype=torch.uint8)
    resident = Resident(block.data_ptr(), block.nbytes)
    ends = []
    for _ in range(4):
        resident.extend(PIECE)
        ends.append(resident.end)
    assert ends == [PIECE, 2 * PIECE, block.nbytes, block.nbytes]


def test_what_is_in_memory_stays() -> None:
    block = torch.arange(PIECE, dtype=torch.int32)
    before = block.clone()
    resident = Resident(block.data_ptr() + 7, block.nbytes - 7)
    while resident.end < block.nbytes - 7:
        resident.extend(PIECE)
    assert torch.equal(block, before)


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())


@pytest.mark.skipif(platform.system() != "Linux" or kernel() < (5, 14), reason="the kernel has no such call")
def test_pages_of_the_block_cost_no_fault_any_more() -> None:
    block = torch.empty(16 * PIECE, dtype=torch.uint8)
    resident = Resident(block.data_ptr(), block.nbytes)
    while resident.end < block.nbytes:
        resident.extend(PIECE)
    before = minor_faults()
    ctypes.memset(block.data_ptr(), 1, block.nbytes)
    assert minor_faults() - before < block.nbytes // 4096 // 4


def minor_faults() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
