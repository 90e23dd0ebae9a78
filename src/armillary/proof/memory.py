"""Whether this machine's memory holds a proof: the whole model in one process, then the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from armillary.errors import Problem
from armillary.layout import Layout
from armillary.plan.resolve import ResolvedPlan
from armillary.proof.law import block_of

_USED = 0.9
"""Share of the free memory that weights may take; the rest is for activations and the pipeline."""


def available() -> int | None:
    """Bytes that this machine has to give; None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def fits(resolved: ResolvedPlan, layout: Layout, *, has_blocks: bool) -> tuple[bool, list[Problem]]:
    """Whether one process can also compute in float64, and why it cannot even in float32, or the ranks not.

    On CUDA the devices have memory of their own, which this does not look at.
    """
    room = _room()
    if room is None:
        return True, []
    elements = _elements(resolved)
    whole = sum(elements.values())
    ranks = layout.world_size // layout.tp * sum(resolved.bytes_on(rank) for rank in range(layout.tp))
    problems = []
    if 4 * whole > room:
        what = f"the whole model in float32 takes {_gb(4 * whole)}, and this machine has {_gb(room)} for it"
        problems.append(Problem("memory", what, _fix(elements, room, has_blocks)))
    if ranks > room:
        what = f"the weights of all ranks take {_gb(ranks)}, and this machine has {_gb(room)} for them"
        problems.append(Problem("memory", what, _fix(elements, room, has_blocks)))
    return 8 * whole <= room, problems


def _room() -> int | None:
    from armillary.parallel.device import device_type

    free = available() if device_type() == "cpu" else None
    return None if free is None else int(_USED * free)


def _elements(resolved: ResolvedPlan) -> Mapping[int, int]:
    """Elements of the parameters by the number of their block; those outside the blocks count to block 0."""
    elements: dict[int, int] = {}
    for name, parameter in resolved.skeleton.parameters.items():
        block = block_of(name)
        number = int(block.rpartition(".")[2]) if block else 0
        elements[number] = elements.get(number, 0) + prod(parameter.shape)
    return elements


def _fix(elements: Mapping[int, int], room: int, has_blocks: bool) -> str:
    """Blocks to cut to, with which float64 fits too."""
    if not has_blocks:
        return "use a machine with more memory"
    fitting = [n for n in range(1, len(elements)) if 8 * _first(elements, n) <= room]
    return f"use --layers {fitting[-1]}" if fitting else "use --layers 1 and a machine with more memory"


def _first(elements: Mapping[int, int], blocks: int) -> int:
    return sum(count for number, count in elements.items() if number < blocks)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
