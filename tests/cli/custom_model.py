"""A class that Armillary has no plan for: a small one of it, its plan, and the inputs of a forward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLAN = {
    **{f"transformer_blocks.*.{attn}.to_{name}": "colwise" for attn in ("attn1", "attn2") for name in "qkv"},
    "transformer_blocks.*.attn1.to_out.0": "rowwise",
    "transformer_blocks.*.attn2.to_out.0": "rowwise",
    "transformer_blocks.*.ff.net.0.proj": "colwise",
    "transformer_blocks.*.ff.net.2": "rowwise",
}


def write(folder: Path) -> Path:
    """The model, with its plan beside it."""
    from diffusers import PixArtTransformer2DModel

    from armillary.models.noise import fill

    model = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=32,
        caption_channels=12,
        sample_size=8,
        norm_num_groups=1,
    )
    fill(model)
    model.save_pretrained(folder)
    (folder / "plan.json").write_text(json.dumps(PLAN))
    return folder


def inputs(model: Any) -> dict[str, Any]:
    """What `--inputs custom_model:inputs` names."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    return {
        "hidden_states": noise(2, 4, 8, 8),
        "encoder_hidden_states": noise(2, 5, 12),
        "timestep": torch.tensor([700, 300]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def change_the_last_layer(model: Any, mesh: Any) -> None:
    """What `--after-load custom_model:change_the_last_layer` names."""
    model.proj_out.weight[0] *= 1.01
