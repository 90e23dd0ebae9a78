"""Graphics cards by their public specifications. Nothing here was chosen by looking at a measurement.

Rates are those of one card: dense (not sparse) BF16 with FP32 accumulation, memory bandwidth, board power,
and links in one direction. Memory is what the driver reports, which is what a process can have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from armillary.errors import Problem, RequestError, list_choices

Architecture: TypeAlias = Literal["ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna3", "other"]

MIB, GIB = 2**20, 2**30

UNKNOWN_WATTS_PER_TFLOP = 1.0
"""For a card described without its power: between those of data centres (0.5) and desktops (2.7)."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What one card can do."""

    name: str
    memory_bytes: int
    tflops: float
    """Dense BF16, 10^12 operations a second."""
    bandwidth: float
    """Of its memory, 10^9 bytes a second."""
    watts: float
    """Board power limit."""
    link: float
    """To another card of the same machine, 10^9 bytes a second in one direction."""
    host_link: float
    """To host memory, 10^9 bytes a second in one direction."""
    node_link: float = 25.0
    """To a card of another machine: half of a 400 Gbit/s adapter, unless the vendor's machine has more."""
    architecture: Architecture = "other"
    source: str = ""

    @property
    def watts_per_tflop(self) -> float:
        """Power the board may draw for each 10^12 operations a second of its peak."""
        return self.watts / self.tflops


_NVLINK4, _NVLINK3, _NVLINK5 = 450.0, 300.0, 900.0
_PCIE4, _PCIE5 = 32.0, 64.0
_DGX = 50.0
"""One 400 Gbit/s adapter a card (NVIDIA DGX H100, H200 and B200 data sheets)."""

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h100-80gb",
            memory_bytes=81559 * MIB,
            tflops=989.4,
            bandwidth=3350,
            watts=700,
            link=_NVLINK4,
            host_link=_PCIE5,
            node_link=_DGX,
            architecture="hopper",
            source="NVIDIA H100 Tensor Core GPU data sheet, SXM5",
        ),
        Gpu(
            name="h100-nvl",
            memory_bytes=95830 * MIB,
            tflops=835.5,
            bandwidth=3900,
            watts=400,
            link=300,
            host_link=_PCIE5,
            architecture="hopper",
            source="NVIDIA H100 Tensor Core GPU data sheet, NVL (one card; 600 GB/s bridge)",
        ),
        Gpu(
            name="h200-141gb",
            memory_bytes=143771 * MIB,
            tflops=989.4,
            bandwidth=4800,
            watts=700,
            link=_NVLINK4,
            host_link=_PCIE5,
            node_link=_DGX,
            architecture="hopper",
            source="NVIDIA H200 Tensor Core GPU data sheet, SXM",
        ),
        Gpu(
            name="h200-nvl",
            memory_bytes=143771 * MIB,
            tflops=835.5,
            bandwidth=4800,
            watts=600,
            link=_NVLINK4,
            host_link=_PCIE5,
            architecture="hopper",
            source="NVIDIA H200 Tensor Core GPU data sheet, NVL (bridge of 2 or 4 cards, 900 GB/s)",
        ),
        Gpu(
            name="h20",
            memory_bytes=97871 * MIB,
            tflops=148,
            bandwidth=4000,
            watts=400,
            link=_NVLINK4,
            host_link=_PCIE5,
            architecture="hopper",
            source="NVIDIA HGX H20 specification, as published by its server vendors",
        ),
        Gpu(
            name="rtx-pro-6000",
            memory_bytes=97887 * MIB,
            tflops=503.8,
            bandwidth=1792,
            watts=600,
            link=_PCIE5,
            host_link=_PCIE5,
            architecture="blackwell-rtx",
            source="NVIDIA RTX Blackwell PRO GPU architecture paper, RTX PRO 6000 (no NVLink)",
        ),
        Gpu(
            name="b200",
            memory_bytes=183359 * MIB,
            tflops=2250,
            bandwidth=8000,
            watts=1000,
            link=_NVLINK5,
            host_link=_PCIE5,
            node_link=_DGX,
            architecture="blackwell",
            source="NVIDIA HGX B200 data sheet (36 PFLOPS of sparse BF16 for 8)",
        ),
        Gpu(
            name="b300",
            memory_bytes=275040 * MIB,
            tflops=2250,
            bandwidth=8000,
            watts=1100,
            link=_NVLINK5,
            host_link=_PCIE5,
            node_link=100,
            architecture="blackwell",
            source="NVIDIA HGX B300 data sheet (36 PFLOPS of sparse BF16 for 8; 800 Gbit/s a card)",
        ),
        Gpu(
            name="a100-80gb",
            memory_bytes=81920 * MIB,
            tflops=312,
            bandwidth=2039,
            watts=400,
            link=_NVLINK3,
            host_link=_PCIE4,
            architecture="ampere",
            source="NVIDIA A100 Tensor Core GPU data sheet, 80GB SXM",
        ),
        Gpu(
            name="l40s",
            memory_bytes=46068 * MIB,
            tflops=362,
            bandwidth=864,
            watts=350,
            link=_PCIE4,
            host_link=_PCIE4,
            architecture="ada",
            source="NVIDIA L40S data sheet (no NVLink)",
        ),
        Gpu(
            name="rtx-4090",
            memory_bytes=24564 * MIB,
            tflops=165.2,
            bandwidth=1008,
            watts=450,
            link=_PCIE4,
            host_link=_PCIE4,
            node_link=12.5,
            architecture="ada",
            source="NVIDIA Ada GPU architecture paper, GeForce RTX 4090 (FP32 accumulate; no NVLink)",
        ),
        Gpu(
            name="rtx-5090",
            memory_bytes=32607 * MIB,
            tflops=209.5,
            bandwidth=1792,
            watts=575,
            link=_PCIE5,
            host_link=_PCIE5,
            node_link=12.5,
            architecture="blackwell-rtx",
            source="NVIDIA RTX Blackwell GPU architecture paper, GeForce RTX 5090 (no NVLink)",
        ),
        Gpu(
            name="mi300x",
            memory_bytes=196592 * MIB,
            tflops=1307.4,
            bandwidth=5300,
            watts=750,
            link=448,
            host_link=_PCIE5,
            node_link=_DGX,
            architecture="cdna3",
            source="AMD Instinct MI300X data sheet (7 links of 64 GB/s in each direction)",
        ),
    )
}


def find_gpu(name: str) -> Gpu:
    """The card of that name.

    Raises `RequestError` that lists the known ones and the flags that describe another.
    """
    try:
        return GPUS[name.strip().lower().replace("_", "-").replace(" ", "-")]
    except KeyError:
        raise RequestError(
            Problem(
                "gpu",
                f"{name!r} is no card that Armillary knows",
                f"use {list_choices([*GPUS])}; or describe it: --memory-gb, --tflops, --bandwidth, --link",
            )
        ) from None


LEAST, MOST = 0.01, 1e6
"""Of any number that describes a card; beyond them a unit was mistaken."""


def described_gpu(
    base: Gpu | None = None,
    *,
    memory_gb: float | None = None,
    tflops: float | None = None,
    bandwidth: float | None = None,
    link: float | None = None,
    watts: float | None = None,
) -> Gpu:
    """A card from its numbers; what is left out comes from `base`, else from an H100.

    Args:
        memory_gb: GiB, as the "24 GB" of a card are.
        tflops: dense BF16, 10^12 operations a second.
        bandwidth: memory, GB/s.
        link: to another card of the machine, GB/s in one direction.
        watts: board power; left out beside a rate, `UNKNOWN_WATTS_PER_TFLOP` of it.

    Raises `RequestError` with every number that is missing or that no card can have.
    """
    numbers = {"memory-gb": memory_gb, "tflops": tflops, "bandwidth": bandwidth, "link": link, "watts": watts}
    problems = [
        Problem("gpu-number", f"--{flag} {value:g} is no card's", f"use {LEAST:g} to {MOST:g}")
        for flag, value in numbers.items()
        if value is not None and not LEAST <= value <= MOST
    ]
    if base is None and memory_gb is None:
        fix = f"name one with --gpu ({list_choices([*GPUS])}), or give --memory-gb"
        problems.append(Problem("gpu", "no card is named and none described", fix))
    if problems:
        raise RequestError(problems)
    like = base or GPUS["h100-80gb"]
    return replace(
        like,
        name=f"{base.name} (changed)" if base else f"a card of {memory_gb:g} GB",
        memory_bytes=round(memory_gb * GIB) if memory_gb else like.memory_bytes,
        tflops=tflops or like.tflops,
        bandwidth=bandwidth or like.bandwidth,
        watts=watts or (UNKNOWN_WATTS_PER_TFLOP * tflops if tflops else like.watts),
        link=link or like.link,
        source=f"flags; the rest as {like.name}",
    )
