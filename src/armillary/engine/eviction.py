"""Whether the prompt's half of the weights leaves the device, where nobody has said.

Eviction costs a copy of that half for every new prompt and nothing a step, so it is worth it where the device
would be crowded, and only there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from armillary.engine.abilities import Abilities
from armillary.engine.modes import defaults
from armillary.engine.request import CompleteRequest
from armillary.layout import Layout
from armillary.residency import Elsewhere, Residency

COMFORT = 0.9
"""Part of a memory that may be used before it is crowded: what fits on paper must not fail in the end."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a rank needs, and what there is, in bytes."""

    has_own_memory: bool
    """Whether the device has memory of its own; a CPU has not."""
    needed: int
    """At most at any time, with all weights on the device."""
    device: int | None
    """Memory of the device (of a CPU, what is free for one rank); None where it is not known."""
    away: int
    """Weights that would live in host memory."""
    host: int | None
    """Free host memory for one rank."""


def eviction(room: Room) -> Elsewhere | None:
    """Where what only the prompt needs shall live; None: on the device, which has room for it.

    Host memory where it is not crowded by that either; else, and on a CPU, the checkpoint on disk.
    """
    if room.device is None or room.needed <= COMFORT * room.device:
        return None
    if not room.has_own_memory or room.host is None or room.away > COMFORT * room.host:
        return "disk"
    return "host"


def is_open(residency: Residency | Mapping[str, Any] | None) -> bool:
    """Whether what was asked for leaves eviction to the machine: fields without `evict`, or nothing."""
    return not (isinstance(residency, Residency) or "evict" in (residency or {}))


def usual_video(request: CompleteRequest, able: Abilities) -> CompleteRequest:
    """The published video of a checkpoint, in place of `request`: what a server must have room for."""
    published = defaults("text-to-video", able)
    width, height = map(int, published.size.split("x"))
    return replace(request, mode="text-to-video", width=width, height=height, num_frames=published.num_frames)


def with_eviction(
    residency: Residency, folder: Path, request: CompleteRequest, layout: Layout, dtype: str
) -> Residency:
    """`residency` with the decision for `request` on the devices of this machine."""
    if residency.offload is not None:  # blocks of both pathways stream already
        return residency
    return replace(residency, evict=eviction(room_for(folder, request, layout, dtype)))


def room_for(folder: Path, request: CompleteRequest, layout: Layout, dtype: str) -> Room:
    """The advisor's figures for one rank, beside the memory of this machine's devices."""
    from armillary.advisor.engines import ENGINES
    from armillary.advisor.memory import DEVICE_CONTEXT_BYTES, memory_of
    from armillary.advisor.model import find_model
    from armillary.advisor.rank import RankModel
    from armillary.advisor.workload import workload_of
    from armillary.parallel.device import device_memory, device_type

    ours = ENGINES["armillary"]
    rank = RankModel.of(find_model(str(folder), dtype), layout)
    needed = memory_of(rank, layout, Residency(), workload_of(request), ours).peak
    away = rank.weights(Residency(evict="host"), leave_out=ours.leaves_out_unused).host
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", layout.world_size))
    host = _free_host_bytes()
    shared = None if host is None else host // ranks
    if device_type() == "cpu":  # no driver, no context
        needed -= DEVICE_CONTEXT_BYTES
        return Room(has_own_memory=False, needed=needed, device=shared, away=away, host=shared)
    return Room(has_own_memory=True, needed=needed, device=device_memory(ranks), away=away, host=shared)


def _free_host_bytes() -> int | None:
    """Memory that could be had without swapping, as Linux tells it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
