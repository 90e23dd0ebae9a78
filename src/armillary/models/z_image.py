"""Z-Image: one stream of picture and prompt, each refined by blocks of its own before they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Optional, Style, parse_style

_LAYERS, _PICTURE, _PROMPT, _GIVEN = "layers.*", "noise_refiner.*", "context_refiner.*", "siglip_refiner.*"


def _styles(block: str) -> dict[str, Style]:
    """The layers that all blocks have."""
    columns = ("attention.to_q", "attention.to_k", "attention.to_v", "feed_forward.w1", "feed_forward.w3")
    rows = ("attention.to_out.0", "feed_forward.w2")
    return {f"{block}.{name}": parse_style("colwise") for name in columns} | {
        f"{block}.{name}": parse_style("rowwise") for name in rows
    }


# one row a prompt: gathering it costs little
_MODULATION = Colwise(gather=True)

PLAN = ParallelPlan(
    {
        **_styles(_LAYERS),
        f"{_LAYERS}.adaLN_modulation.0": _MODULATION,
        # a config may have no refiners
        **{
            key: Optional(style)
            for block in (_PICTURE, _PROMPT, _GIVEN)
            for key, style in _styles(block).items()
        },
        f"{_PICTURE}.adaLN_modulation.0": Optional(_MODULATION),
    },
    source="armillary.models.z_image",
)
DEFAULTS: Mapping[str, Any] = {
    "all_patch_size": (2,),
    "all_f_patch_size": (1,),
    "in_channels": 16,
    "dim": 3840,
    "n_heads": 30,
    "cap_feat_dim": 2560,
    "siglip_feat_dim": None,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "in_channels": 4,
    "dim": 48,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 4,
    "cap_feat_dim": 10,
    "axes_dims": [4, 4, 4],
    "axes_lens": [128, 32, 32],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-image": _TINY,
    "given-pictures": {**_TINY, "siglip_feat_dim": 14},
    "no-qk-norm": {**_TINY, "qk_norm": False},
    "no-refiners": {**_TINY, "n_refiner_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the class takes `n_kv_heads` and does not use it."""
    count = config["n_heads"]
    return tuple(
        attention(f"{block}.attention", count, config["dim"] // count)
        for block in (_LAYERS, _PICTURE, _PROMPT, _GIVEN)
    )


_ROWS_TIMES = 32
"""Picture and prompt are each filled up to a multiple of so many rows."""


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; without given pictures."""
    patch, frames = config["all_patch_size"][0], config["all_f_patch_size"][0]
    picture = _filled((size.frames // frames) * (size.height // patch) * (size.width // patch))
    prompt = _filled(size.text)
    both = picture + prompt
    modulated = (_LAYERS, _PICTURE)
    return Cost(
        rows={
            "all_x_embedder": picture,
            "cap_embedder": prompt,
            _PICTURE: picture,
            _PROMPT: prompt,
            _LAYERS: both,
            **{f"{block}.adaLN_modulation": 1 for block in modulated},
            **{f"all_final_layer.{patch}-{frames}.linear": both},
        },
        attentions=(
            Attention(f"{_PICTURE}.attention", picture, picture),
            Attention(f"{_PROMPT}.attention", prompt, prompt),
            Attention(f"{_LAYERS}.attention", both, both),
        ),
    )


def _filled(rows: int) -> int:
    return -(-rows // _ROWS_TIMES) * _ROWS_TIMES


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; pictures of two sizes, in the second form each after a given one."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    pictures = [noise(config["in_channels"], 1, height, width) for height, width in ((6, 8), (4, 20))]
    prompts = [noise(length, config["cap_feat_dim"]) for length in (5, 40)]
    given: dict[str, Any] = {"x": pictures, "t": torch.tensor([0.7, 0.3]), "cap_feats": prompts}
    if config["siglip_feat_dim"]:
        before = [noise(config["in_channels"], 1, 4, 4) for _ in pictures]
        given |= {
            "x": [list(pair) for pair in zip(before, pictures, strict=True)],
            "cap_feats": [[prompt, noise(3, config["cap_feat_dim"])] for prompt in prompts],
            "siglip_feats": [[noise(3, 2, config["siglip_feat_dim"]) for _ in range(2)] for _ in pictures],
            "image_noise_mask": [[0, 1] for _ in pictures],
        }
    return given
