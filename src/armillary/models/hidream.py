"""HiDream-I1: blocks with two streams, then with one; a row of the picture takes a few of many MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.models.cost import Attention, Cost, Size
from armillary.models.entries import MODULATION, optional
from armillary.models.family import attention
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Entry, NormSplit, parse_entry

_TWO, _ONE = "double_stream_blocks.*.block", "single_stream_blocks.*.block"


def _attention_entries(attn: str, suffix: str) -> dict[str, Entry]:
    """One stream's projections and norms, which go across all heads."""
    styles = {**dict.fromkeys(("to_q", "to_k", "to_v"), "colwise"), "to_out": "rowwise"}
    projections = {f"{attn}.{name}{suffix}": parse_entry(style) for name, style in styles.items()}
    return projections | {f"{attn}.{name}_rms_norm{suffix}": NormSplit() for name in "qk"}


def _mlp_entries(path: str) -> dict[str, Entry]:
    styles = {"w1": "colwise", "w3": "colwise", "w2": "rowwise"}
    return {f"{path}.{name}": parse_entry(style) for name, style in styles.items()}


def _expert_entries(path: str) -> dict[str, Entry]:
    """Of the picture's MLP: a shared expert and routed ones, or a single MLP where there are no experts."""
    return optional(
        {
            **_mlp_entries(f"{path}.shared_experts"),
            **_mlp_entries(f"{path}.experts.*"),
            **_mlp_entries(path),
        }
    )


PLAN = ParallelPlan(
    {
        **_attention_entries(f"{_TWO}.attn1", ""),
        **_attention_entries(f"{_TWO}.attn1", "_t"),
        **_expert_entries(f"{_TWO}.ff_i"),
        **_mlp_entries(f"{_TWO}.ff_t"),
        f"{_TWO}.adaLN_modulation.1": MODULATION,
        # one for each block, all of them of the prompt's few rows
        "caption_projection.*.linear": Colwise(gather=True),
        # a config may have no blocks of the second kind
        **optional(_attention_entries(f"{_ONE}.attn1", "")),
        **_expert_entries(f"{_ONE}.ff_i"),
        **optional({f"{_ONE}.adaLN_modulation.1": MODULATION}),
    },
    source="armillary.models.hidream",
)
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 20,
    "attention_head_dim": 128,
    "num_layers": 16,
    "num_single_layers": 32,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
}
FP32_MODULES: tuple[str, ...] = ()
REPLICATED: Mapping[str, str] = {}
CONTEXT = False
KINDS: Mapping[str, str] = {f"{block}.ff_i.gate": "other" for block in (_TWO, _ONE)}
"""The router's scores: a few rows, and every rank must send each row of the picture to the same experts."""

_TINY = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "caption_channels": [12, 10],
    "text_emb_dim": 14,
    "axes_dims_rope": [4, 6, 6],
    "max_resolution": [8, 8],
    "llama_layers": [0, 1],
}
TINY: Mapping[str, Mapping[str, Any]] = {
    "experts": _TINY,
    "no-experts": {**_TINY, "num_routed_experts": 0},
    "no-single-blocks": {**_TINY, "num_single_layers": 0, "num_layers": 2},
}


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """See `Family.heads`."""
    sizes = config["num_attention_heads"], config["attention_head_dim"]
    return tuple(
        attention(
            f"{block}.attn1",
            *sizes,
            outputs={
                "q_rms_norm": ("query",),
                "k_rms_norm": ("key_value",),
                "to_q_t": ("query",),
                "to_k_t": ("key_value",),
                "to_v_t": ("key_value",),
                "q_rms_norm_t": ("query",),
                "k_rms_norm_t": ("key_value",),
            },
            inputs={"to_out": ("query",), "to_out_t": ("query",)},
        )
        for block in (_TWO, _ONE)
    )


def cost(config: Mapping[str, Any], size: Size) -> Cost:
    """See `Family.cost`; `text` counts the rows of both encoders. An expert sees its share of the rows."""
    patch = config["patch_size"]
    picture = (size.height // patch) * (size.width // patch)
    both = picture + size.text
    experts = config["num_activated_experts"] / max(1, config["num_routed_experts"])
    of_text = ("ff_t", *(f"attn1.{name}" for name in ("to_q_t", "to_k_t", "to_v_t", "to_out_t")))
    return Cost(
        rows={
            "x_embedder": picture,
            "final_layer": picture,
            "caption_projection": size.text,
            _TWO: picture,
            **{f"{_TWO}.{name}": size.text for name in of_text},
            f"{_TWO}.ff_i.experts": round(picture * experts),
            _ONE: both,
            f"{_ONE}.ff_i.experts": round(both * experts),
            **{f"{block}.adaLN_modulation": 1 for block in (_TWO, _ONE)},
        },
        attentions=(Attention(f"{_TWO}.attn1", both, both), Attention(f"{_ONE}.attn1", both, both)),
    )


def cut(config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
    """See `Family.cut`: every block, those with two streams first, takes one layer of the second encoder."""
    two, every = config["num_layers"], config["llama_layers"]
    return {"llama_layers": [*every[:two][:layers], *every[two:][:layers]]}


def inputs(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `Family.inputs`: a picture that is not square, whose rows the class pads."""
    import torch

    from armillary.models.noise import Noise

    noise = Noise()
    t5, llama = config["caption_channels"]
    return {
        "hidden_states": noise(2, config["in_channels"], 4, 6),
        "timesteps": torch.tensor([700.0, 300.0]),
        "encoder_hidden_states_t5": noise(2, 5, t5),
        "encoder_hidden_states_llama3": noise(max(config["llama_layers"]) + 1, 2, 5, llama),
        "pooled_embeds": noise(2, config["text_emb_dim"]),
    }
