"""The one device-specific file: which devices there are, which one a rank gets, which backend joins them.

Run so far: CPU with gloo. Written for CUDA with NCCL and not yet run there.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Literal

from armillary.errors import Problem

if TYPE_CHECKING:
    import torch

DeviceType = Literal["cuda", "cpu"]


def device_type() -> DeviceType:
    """ "cuda" where torch sees such a device (`CUDA_VISIBLE_DEVICES=` hides them all), else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def visible_devices() -> int:
    """How many devices of `device_type()` this process may use; on the CPU the cores it may run on."""
    import torch

    return torch.cuda.device_count() if device_type() == "cuda" else cores()


def cores() -> int:
    """CPU cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def device_for(local_rank: int) -> torch.device:
    """The device of a rank, by its number on its machine; on CUDA it becomes the process's current device."""
    import torch

    if device_type() == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def device_memory(ranks: int) -> int:
    """Bytes of the smallest of the first `ranks` CUDA devices, asked of the driver without a context."""
    import torch

    count = min(ranks, torch.cuda.device_count())
    return min(torch.cuda.get_device_properties(number).total_memory for number in range(count))


def backend() -> Literal["nccl", "gloo"]:
    """The torch.distributed backend for `device_type()`."""
    return "nccl" if device_type() == "cuda" else "gloo"


def check_devices(world_size: int) -> list[Problem]:
    """Why this machine cannot hold `world_size` ranks. CPU ranks may share cores: that warns, once."""
    visible = visible_devices()
    if world_size <= visible:
        return []
    if device_type() == "cpu":
        warnings.warn(
            f"{world_size} ranks share {visible} CPU cores and will run slower than {visible} would",
            RuntimeWarning,
            stacklevel=2,
        )
        return []
    return [
        Problem(
            rule="ranks-fit-devices",
            message=f"{world_size} ranks need a CUDA device each and {visible} "
            f"{'is' if visible == 1 else 'are'} visible",
            fix=f"use degrees that multiply to at most {visible}, "
            "or several machines with torchrun (CUDA_VISIBLE_DEVICES decides what is visible)",
        )
    ]
