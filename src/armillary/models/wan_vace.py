"""Wan VACE: Wan with control blocks beside some of its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models import wan
from armillary.models.cost import Cost, Size
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Optional

_CONTROL = "vace_blocks.*"

PLAN = ParallelPlan(
    {
        **wan.block_entries("blocks.*"),
        **wan.block_entries(_CONTROL),
        # square layers between whole states; only the first block has one on its way in
        f"{_CONTROL}.proj_in": Optional(Colwise(gather=True)),
        f"{_CONTROL}.proj_out": Colwise(gather=True),
    },
    source="armillary.models.wan_vace",
)
DEFAULTS: Mapping[str, Any] = {**wan.DEFAULTS, "vace_layers": [*range(0, 40, 5)]}
FP32_MODULES = wan.FP32_MODULES
IGNORED = wan.IGNORED
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_CONTROL_CHANNELS = 6
TINY: Mapping[str, Mapping[str, Any]] = {
    name: {**config, "vace_layers": [0, 1], "vace_in_channels": _CONTROL_CHANNELS}
    for name, config in wan.TINY.items()
    if name in ("text-to-video", "image-to-video")
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    return (*wan.block_heads(config, "blocks.*"), *wan.block_heads(config, _CONTROL))


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    return wan.block_cost(config, size, ("blocks.*", _CONTROL))


def cut(config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
    """See `Family.cut`: a control block stands beside every block of the list."""
    return {"vace_layers": [number for number in config["vace_layers"] if number < layers]}


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`."""
    from armillary.models.noise import Noise

    given = wan.inputs(config)
    control = Noise(seed=1)(2, config["vace_in_channels"], *given["hidden_states"].shape[2:])
    return {**given, "control_hidden_states": control}
