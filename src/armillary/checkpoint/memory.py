"""Fresh memory made resident piece by piece, where the kernel can do that (Linux 5.14 and later)."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

PIECE = 512 << 10
"""Bytes: few enough to be in the processor's cache still when the kernel, having cleared them, fills them."""
MADV_POPULATE_WRITE = 23  # of Linux' madvise(2); Python's mmap module has no name for it


class Resident:
    """The part of a fresh block of memory that has its pages, from the start on.

    Without it every page costs a fault at its first byte, which is half of the time of a read from the page
    cache. Where the kernel cannot do it, nothing happens and the faults come as always.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        self._address = address
        self._nbytes = nbytes
        self.end = 0
        """Bytes from the start."""

    def extend(self, nbytes: int) -> None:
        """Make so many bytes more resident, which are to be written next."""
        first, self.end = self._address + self.end, min(self._nbytes, self.end + nbytes)
        # up to the page that the last of them is in, which the next call would find resident
        start, stop = _page_at(first), _page_at(self._address + self.end - 1) + mmap.PAGESIZE
        if sys.platform == "linux" and self.end > first - self._address:
            _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_POPULATE_WRITE)


def _page_at(address: int) -> int:
    return address // mmap.PAGESIZE * mmap.PAGESIZE


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
