"""Chroma: FLUX.1's blocks, with one small network instead of a modulation in every block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models import flux
from armillary.models.cost import Cost, Size
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

_MODULATIONS = "distilled_guidance_layer"

PLAN = ParallelPlan(
    {
        **flux.block_entries(),
        # three rows for every modulated layer, and half a gigabyte of weights
        f"{_MODULATIONS}.layers.*.linear_1": "colwise",
        f"{_MODULATIONS}.layers.*.linear_2": "rowwise",
    },
    source="armillary.models.chroma",
)
DEFAULTS: Mapping[str, Any] = {
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "joint_attention_dim": 12,
    "axes_dims_rope": [2, 2, 4],
    "approximator_num_channels": 16,
    "approximator_hidden_dim": 24,
    "approximator_layers": 2,
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-image": _TINY,
    "no-single-blocks": {**_TINY, "num_single_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    return flux.heads(config)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    like = flux.cost(config, size)
    vectors = 3 * config["num_single_layers"] + 12 * config["num_layers"] + 2
    rows = {key: count for key, count in like.rows.items() if "norm" not in key}
    return Cost(rows={**rows, _MODULATIONS: vectors}, attentions=like.attentions)


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; of the second prompt, two rows are none."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    shown = torch.ones(2, 5 + 9, dtype=torch.bool)
    shown[1, 3:5] = False
    return {
        "hidden_states": noise(2, 9, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "timestep": torch.tensor([0.5, 0.25]),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(3.0), torch.arange(3.0)),
        "txt_ids": torch.zeros(5, 3),
        "attention_mask": shown,
    }
