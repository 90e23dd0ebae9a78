"""Qwen-Image and its edit and layered models: two streams that attend jointly in every block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size, text_rows
from armillary.models.entries import MODULATION, attention_entries, feed_forward_entries
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

_BLOCK = "transformer_blocks.*"

PLAN = ParallelPlan(
    {
        **attention_entries(f"{_BLOCK}.attn", added=True),
        **feed_forward_entries(f"{_BLOCK}.img_mlp"),
        **feed_forward_entries(f"{_BLOCK}.txt_mlp"),
        f"{_BLOCK}.img_mod.1": MODULATION,
        f"{_BLOCK}.txt_mod.1": MODULATION,
    },
    source="armillary.models.qwen_image",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "use_additional_t_cond": False,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False
KINDS: Mapping[str, str] = {"time_text_embed.addition_t_embedding": "embedding"}

_TINY = {
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 16,
    "out_channels": 4,
    "joint_attention_dim": 12,
    "axes_dims_rope": [2, 2, 4],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-image": _TINY,
    "edit": {**_TINY, "zero_cond_t": True},
    "layered": {**_TINY, "use_additional_t_cond": True, "use_layer3d_rope": True},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the processor divides `inner_dim` by `heads`, so both are local."""
    return (attention(f"{_BLOCK}.attn", config["num_attention_heads"], config["attention_head_dim"]),)


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; latents are packed two by two before the model sees them."""
    picture = (size.height // 2) * (size.width // 2) * size.frames
    both = picture + size.text
    return Cost(
        rows={
            "img_in": picture,
            "proj_out": picture,
            "txt_in": size.text,
            _BLOCK: picture,
            **text_rows(_BLOCK, size.text, "txt_mlp"),
            **{f"{_BLOCK}.{name}": 1 for name in ("img_mod", "txt_mod")},
        },
        attentions=(Attention(f"{_BLOCK}.attn", both, both),),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: a picture and one to condition on, and prompts of two lengths."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    given = {
        "hidden_states": noise(2, 6 + 4, config["in_channels"]),
        "encoder_hidden_states": noise(2, 5, config["joint_attention_dim"]),
        "encoder_hidden_states_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "timestep": torch.tensor([0.5, 0.25]),
        "img_shapes": [[(1, 2, 3), (1, 2, 2)]] * 2,
    }
    if config["use_additional_t_cond"]:
        given["additional_t_cond"] = torch.tensor([0, 1])
    return given
