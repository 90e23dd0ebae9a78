"""Qwen-Image 2.1: one stream of text and pictures, gated MLPs, one modulation for all blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import MODULATION, attention_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        "modulation.1": MODULATION,  # for all blocks
        **attention_entries(f"{_BLOCK}.attn"),
        f"{_BLOCK}.img_mlp.proj": "colwise",
        f"{_BLOCK}.img_mlp.gate_layer": "colwise",
        f"{_BLOCK}.img_mlp.out": "rowwise",
    },
    source="armillary.models.qwen_image21",
)
DEFAULTS: Mapping[str, Any] = {"num_attention_heads": 32, "attention_head_dim": 128}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 4,
    "out_channels": 4,
    "context_in_dim": 12,
    "axes_dims_rope": [2, 2, 4],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "causal": _TINY,
    "not-causal": {**_TINY, "causal_condition": False},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the processor divides `inner_dim` by `heads`, so both are local."""
    return (attention(f"{_BLOCK}.attn", config["num_attention_heads"], config["attention_head_dim"]),)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    picture = size.height * size.width
    both = picture + size.text
    return Cost(
        rows={"img_in": picture, "txt_in": size.text, "proj_out": both, _BLOCK: both},
        attentions=(Attention(f"{_BLOCK}.attn", both, both),),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: a picture in the prompt, then the one to draw; a slot stands for four latents."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    in_prompt, drawn = (1, 2, 2), (1, 4, 4)
    slots = [[False, False, True, False, False, *[True] * 4]] * 2
    return {
        "hidden_states": noise(2, 4 + 16, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["context_in_dim"]),
        "encoder_hidden_states_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]),
        "timestep": torch.tensor([0.5, 0.25]),
        "img_shapes": [[in_prompt, drawn]] * 2,
        "img_mask": torch.tensor(slots),
    }
