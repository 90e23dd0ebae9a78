"""HunyuanVideo 1.5: blocks with two streams, prompts from two encoders and a picture's features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models import hunyuan_video
from armillary.models.cost import Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup

PLAN = ParallelPlan(hunyuan_video.two_stream_entries(), source="armillary.models.hunyuan_video15")
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 16,
    "attention_head_dim": 128,
    "patch_size": 1,
    "patch_size_t": 1,
    "use_meanflow": False,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False
KINDS: Mapping[str, str] = {"cond_type_embed": "embedding"}

_TINY = {
    "num_layers": 2,
    "num_refiner_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "in_channels": 9,
    "out_channels": 4,
    "text_embed_dim": 12,
    "text_embed_2_dim": 10,
    "image_embed_dim": 14,
    "rope_axes_dim": [2, 2, 4],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "image-to-video": _TINY,
    "mean-flow": {**_TINY, "use_meanflow": True},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return tuple(attention(f"{block}.attn", *sizes) for block in (hunyuan_video.REFINER, hunyuan_video.TWO))


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; `text` counts the rows of both encoders and of the picture's features."""
    video = size.frames // config["patch_size_t"]
    video *= (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    return Cost(
        rows=hunyuan_video.two_stream_rows(video, size.text),
        attentions=hunyuan_video.two_stream_attentions(video + size.text, size.text),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: prompts of two lengths in both encoders, and a picture."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    given = {
        "hidden_states": noise(2, config["in_channels"], 2, 2, 3),
        "timestep": torch.tensor([700.0, 300.0]),
        "encoder_hidden_states": noise(2, 5, config["text_embed_dim"]),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "encoder_hidden_states_2": noise(2, 4, config["text_embed_2_dim"]),
        "encoder_attention_mask_2": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]),
        "image_embeds": noise(2, 3, config["image_embed_dim"]),
    }
    if config["use_meanflow"]:
        given["timestep_r"] = torch.tensor([600.0, 200.0])
    return given
