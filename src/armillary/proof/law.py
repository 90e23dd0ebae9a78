"""Law 5: how far ranks may be from one process, and which layer is the first that is farther."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armillary.proof.watch import Place

if TYPE_CHECKING:
    import torch

FLOOR = 1e-5
"""Relative L2 distance that float32 may always have."""

_LAYER_FLOOR = {"float32": FLOOR, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The same for one layer: two units in the last place of the dtype, where rounding is coarser than FLOOR."""

_Key = tuple[int, Place]
"""(call of the model, place)."""


def tolerance(dtype: str, rounding: float | None) -> float:
    """The relative L2 distance from float32 that ranks may have which compute in `dtype`.

    `rounding` is the distance of one process from its own float32: in float64 where `dtype` is float32
    (None: not computed), else in `dtype`.
    """
    if dtype == "float32":
        return max(FLOOR, 4 * (rounding or 0.0))
    assert rounding is not None, "one process always computes in a half dtype too"
    return 2 * rounding


def rule(dtype: str, rounding: float | None) -> str:
    """`tolerance` in words."""
    if dtype != "float32":
        return f"2 x the distance of one process in {dtype} from one in float32"
    if rounding is None:
        return f"{FLOOR:g} (float64, which would say what rounding does, does not fit this machine)"
    return f"max({FLOOR:g}, 4 x the distance of one process in float32 from one in float64)"


def relative_l2(one: torch.Tensor, truth: torch.Tensor) -> float:
    """The relative L2 distance of a tensor from the true one; infinite where a number is none."""
    difference, scale = float((one.double() - truth.double()).norm()), float(truth.double().norm())
    if not math.isfinite(difference) or not math.isfinite(scale):
        return math.inf
    return difference / scale if scale else math.inf if difference else 0.0


@dataclass(frozen=True)
class Divergence:
    """The first tensor, in the order of the computation, that differs by more than rounding explains."""

    module: str
    """Where the difference arises: a layer whose output differs, or what feeds one whose input differs."""
    block: str | None
    """The block it is in; None outside the blocks."""
    tensor: str
    """The tensor: "output of layers.0.self_attn.to_add_out"."""
    call: int
    """The call of the model, from 0."""
    relative_l2: float
    allowed: float


def first_divergence(
    order: Sequence[_Key], apart: Mapping[_Key, float], rounding: Mapping[_Key, float], dtype: str
) -> Divergence | None:
    """The first of `order` whose distance is above the floor and four times what rounding does to it."""
    for call, place in order:
        distance = apart.get((call, place), 0.0)
        allowed = max(_LAYER_FLOOR[dtype], 4 * rounding.get((call, place), 0.0))
        if distance > allowed:
            module = place.module if place.side == "output" else _feeding(place.module)
            tensor = f"{place.side} of {place.module}"
            return Divergence(module, block_of(module), tensor, call, distance, allowed)
    return None


def is_routed(module: str) -> bool:
    """Whether a router picks the rows that a module sees: rounding may pick others, which is no fault."""
    return "experts" in module.split(".")


def by_block(values: Mapping[_Key, float]) -> dict[str, float]:
    """The largest value in every block, in order."""
    worst: dict[str, float] = {}
    for (_, place), value in values.items():
        if block := block_of(place.module):
            worst[block] = max(worst.get(block, 0.0), value)
    return dict(sorted(worst.items(), key=lambda item: _sortable(item[0])))


def block_of(module: str) -> str | None:
    """The block that a module is, or is in: "layers.3" of "layers.3.mlp.down_proj"."""
    parts = module.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else ".".join(parts[: number + 1])


def _feeding(module: str) -> str:
    """What computes the input of a module: its parent, past lists ("attn" of "attn.to_out.0")."""
    parts = module.split(".")
    while parts.pop().isdigit() and parts:
        pass
    return ".".join(parts) or module


def _sortable(block: str) -> tuple[str, int]:
    path, _, number = block.rpartition(".")
    return path, int(number)
