"""Z-Image: one stream of text and picture, each refined by blocks of its own before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import MODULATION, attention_entries, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Entry, parse_entry

_MODULATED = ("layers.*", "noise_refiner.*")
_REFINERS = ("noise_refiner.*", "context_refiner.*", "siglip_refiner.*")


def _entries(block: str) -> dict[str, Entry]:
    mlp = {"w1": "colwise", "w3": "colwise", "w2": "rowwise"}
    return {
        **attention_entries(f"{block}.attention"),
        **{f"{block}.feed_forward.{name}": parse_entry(style) for name, style in mlp.items()},
    }


PLAN = ParallelPlan(
    {
        **_entries("layers.*"),
        "layers.*.adaLN_modulation.0": MODULATION,
        # a config may have no refiners, and most have none of pictures' features
        **optional({key: e for block in _REFINERS for key, e in _entries(block).items()}),
        **optional({"noise_refiner.*.adaLN_modulation.0": MODULATION}),
    },
    source="armillary.models.z_image",
)
DEFAULTS: Mapping[str, Any] = {
    "dim": 3840,
    "n_heads": 30,
    "all_patch_size": (2,),
    "siglip_feat_dim": None,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False

_TINY = {
    "dim": 48,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 4,
    "in_channels": 4,
    "cap_feat_dim": 12,
    "axes_dims": [4, 4, 4],
    "axes_lens": [128, 16, 16],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "text-to-image": _TINY,
    "no-qk-norm": {**_TINY, "qk_norm": False},
    "no-refiners": {**_TINY, "n_refiner_layers": 0},
    "omni": {**_TINY, "siglip_feat_dim": 10},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`; the class gives keys and values as many heads as queries, whatever `n_kv_heads`."""
    sizes = config["n_heads"], config["dim"] // config["n_heads"]
    return tuple(attention(f"{block}.attention", *sizes) for block in ("layers.*", *_REFINERS))


_MULTIPLE = 32
"""Rows of a stream are padded to a multiple of this."""


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`."""
    patch = config["all_patch_size"][0]
    picture = _padded((size.height // patch) * (size.width // patch))
    text = _padded(size.text)
    rows = {"layers.*": picture + text, "noise_refiner.*": picture, "context_refiner.*": text}
    return Cost(
        rows={
            **rows,
            "siglip_refiner.*": _MULTIPLE,  # of pictures' features, where there are any, at least
            **{f"{block}.adaLN_modulation": 1 for block in _MODULATED},
            "cap_embedder": text,
            "all_x_embedder": picture,
            "all_final_layer": picture + text,
        },
        attentions=tuple(Attention(f"{block}.attention", count, count) for block, count in rows.items()),
    )


def _padded(rows: int) -> int:
    return rows + -rows % _MULTIPLE


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: pictures and prompts of two sizes; with features, a picture to condition on."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    channels, text = config["in_channels"], config["cap_feat_dim"]
    pictures = [noise(channels, 1, 4, 6), noise(channels, 1, 4, 4)]
    prompts = [noise(5, text), noise(40, text)]
    given: dict[str, Any] = {"x": pictures, "t": torch.tensor([0.5, 0.25]), "cap_feats": prompts}
    if config["siglip_feat_dim"]:
        given["x"] = [[noise(channels, 1, 4, 4), picture] for picture in pictures]
        given["cap_feats"] = [[noise(3, text), prompt] for prompt in prompts]
        given["siglip_feats"] = [[noise(2, 2, config["siglip_feat_dim"]), None] for _ in pictures]
        given["image_noise_mask"] = [[0, 1]] * 2
    return given
