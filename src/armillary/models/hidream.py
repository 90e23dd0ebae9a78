"""HiDream-I1: two streams that attend jointly, then one, with experts that each row chooses from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup, Role
from armillary.plan.styles import Colwise, NormSplit, Optional, Style, parse_style

_TWO, _ONE = "double_stream_blocks.*.block", "single_stream_blocks.*.block"
_PICTURE, _PROMPT = "", "_t"
"""What the names of the attention's layers end in, for either stream."""


def _attention_styles(block: str, stream: str) -> dict[str, Style]:
    attn = f"{block}.attn1"
    norms = (f"q_rms_norm{stream}", f"k_rms_norm{stream}")  # across heads
    return {
        **{f"{attn}.to_{name}{stream}": parse_style("colwise") for name in "qkv"},
        **{f"{attn}.{norm}": NormSplit() for norm in norms},
        f"{attn}.to_out{stream}": parse_style("rowwise"),
    }


def _mlp_styles(mlp: str) -> dict[str, Style]:
    names = {"w1": "colwise", "w3": "colwise", "w2": "rowwise"}
    return {f"{mlp}.{name}": parse_style(style) for name, style in names.items()}


def _expert_styles(block: str) -> dict[str, Style]:
    """A config has either experts or one MLP. Every expert is split, so each of them joins its own rows."""
    return {
        **_mlp_styles(f"{block}.ff_i"),
        **_mlp_styles(f"{block}.ff_i.experts.*"),
        **_mlp_styles(f"{block}.ff_i.shared_experts"),
    }


# one row a prompt: gathering it costs little
_MODULATION = Colwise(gather=True)
_SINGLE = {**_attention_styles(_ONE, _PICTURE), f"{_ONE}.adaLN_modulation.1": _MODULATION}

PLAN = ParallelPlan(
    {
        f"{_TWO}.adaLN_modulation.1": _MODULATION,
        **_attention_styles(_TWO, _PICTURE),
        **_attention_styles(_TWO, _PROMPT),
        **_mlp_styles(f"{_TWO}.ff_t"),
        **{key: Optional(style) for key, style in _expert_styles(_TWO).items()},
        # a config may have no blocks of the second kind
        **{key: Optional(style) for key, style in {**_SINGLE, **_expert_styles(_ONE)}.items()},
        # one for each block's rows of the prompt: few rows, made once a forward
        "caption_projection.*.linear": Colwise(gather=True),
    },
    source="armillary.models.hidream",
)
DEFAULTS: Mapping[str, Any] = {
    "in_channels": 64,
    "num_attention_heads": 20,
    "attention_head_dim": 128,
    "text_emb_dim": 2048,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {
    f"{block}.ff_i.gate": "a row for each expert, by which every rank chooses the same ones"
    for block in (_TWO, _ONE)
}
CONTEXT = False

_TINY = {
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "caption_channels": [10, 14],
    "text_emb_dim": 12,
    "num_routed_experts": 3,
    "axes_dims_rope": [4, 2, 2],
    "max_resolution": [8, 8],
    "llama_layers": [0, 1],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "experts": _TINY,
    "no-experts": {**_TINY, "num_routed_experts": 0},
    "no-single-blocks": {**_TINY, "num_layers": 2, "num_single_layers": 0},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    roles: dict[str, Role] = {"q": "query", "k": "key_value", "v": "key_value"}
    streams = (_PICTURE, _PROMPT)
    outputs = {f"to_{name}{stream}": (role,) for name, role in roles.items() for stream in streams}
    norms = {f"{name}_rms_norm{stream}": (roles[name],) for name in "qk" for stream in streams}
    return tuple(
        attention(
            f"{block}.attn1",
            config["num_attention_heads"],
            config["attention_head_dim"],
            outputs=outputs | norms,
            inputs={f"to_out{stream}": ("query",) for stream in streams},
        )
        for block in (_TWO, _ONE)
    )


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; `size.text` are the rows of all prompts together.

    Of the experts each counts with its share of the rows.
    """
    picture = (size.height // config["patch_size"]) * (size.width // config["patch_size"])
    both = picture + size.text
    share = config["num_activated_experts"] / (config["num_routed_experts"] or 1)
    prompt = (*(f"attn1.to_{name}_t" for name in ("q", "k", "v", "out")), "ff_t")
    return Cost(
        rows={
            "x_embedder": picture,
            "final_layer.linear": picture,
            "caption_projection": size.text,
            _TWO: picture,
            **{f"{_TWO}.{name}": size.text for name in prompt},
            _ONE: both,
            **{f"{block}.adaLN_modulation": 1 for block in (_TWO, _ONE)},
            f"{_TWO}.ff_i.experts": round(picture * share),
            f"{_ONE}.ff_i.experts": round(both * share),
        },
        attentions=(Attention(f"{_TWO}.attn1", both, both), Attention(f"{_ONE}.attn1", both, both)),
    )


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`; a picture that is not square, which the model fills up with rows of nothing."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    t5, llama = config["caption_channels"]
    layers = max(config["llama_layers"]) + 1
    return {
        "hidden_states": noise(2, config["in_channels"], 4, 6),
        "timesteps": torch.tensor([700.0, 300.0]),
        "encoder_hidden_states_t5": noise(2, 3, t5),
        "encoder_hidden_states_llama3": noise(layers, 2, 5, llama),
        "pooled_embeds": noise(2, config["text_emb_dim"]),
    }
