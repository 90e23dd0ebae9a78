"""The parameters of `Cosmos3OmniTransformer`, written down from its config alone (diffusers 0.42.1).

With it `check`, the advisor and the loader's comparison know a checkpoint of 128 GB in milliseconds
and without importing torch. A test holds that it equals the real model for every config variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Described: TypeAlias = tuple[str, tuple[int, ...], str]
"""(full parameter name, full shape, kind)."""

_TIME_CHANNELS = 256


def parameters(c: Mapping[str, Any]) -> Iterator[Described]:
    """Every entry of the state dict of a model with the complete config `c`, in its order."""
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    if c["action_gen"]:
        yield "action_modality_embed", (hidden,), "other"
    if c["sound_gen"]:
        yield "audio_modality_embed", (hidden,), "other"
    yield "embed_tokens.weight", (vocab, hidden), "embedding"
    for layer in range(c["num_hidden_layers"]):
        yield from _block(f"layers.{layer}", c)
    yield "norm.weight", (hidden,), "norm"
    yield "norm_moe_gen.weight", (hidden,), "norm"
    yield from _linear("lm_head", vocab, hidden, bias=False)
    yield from _linear("proj_in", hidden, c["patch_latent_dim"])
    yield from _linear("proj_out", c["patch_latent_dim"], hidden)
    yield from _linear("time_embedder.linear_1", hidden, _TIME_CHANNELS)
    yield from _linear("time_embedder.linear_2", hidden, hidden)
    if c["action_gen"]:
        yield from _domain_linear("action_proj_in", c["action_dim"], hidden, c["num_embodiment_domains"])
        yield from _domain_linear("action_proj_out", hidden, c["action_dim"], c["num_embodiment_domains"])
    if c["sound_gen"]:
        yield from _linear("audio_proj_in", hidden, c["sound_dim"])
        yield from _linear("audio_proj_out", c["sound_dim"], hidden)


def _block(path: str, c: Mapping[str, Any]) -> Iterator[Described]:
    yield from _attention(f"{path}.self_attn", c)
    for mlp in ("mlp", "mlp_moe_gen"):
        if c["hidden_act"] == "silu":
            yield from _linear(
                f"{path}.{mlp}.gate_proj", c["intermediate_size"], c["hidden_size"], bias=False
            )
        yield from _linear(f"{path}.{mlp}.up_proj", c["intermediate_size"], c["hidden_size"], bias=False)
        yield from _linear(f"{path}.{mlp}.down_proj", c["hidden_size"], c["intermediate_size"], bias=False)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        for pathway in ("", "_moe_gen"):
            yield f"{path}.{norm}{pathway}.weight", (c["hidden_size"],), "norm"


def _attention(path: str, c: Mapping[str, Any]) -> Iterator[Described]:
    head_dim, hidden, bias = c["head_dim"], c["hidden_size"], c["attention_bias"]
    query, key_value = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    for q, k, v, out in (
        ("to_q", "to_k", "to_v", "to_out"),
        ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    ):
        yield from _linear(f"{path}.{q}", query, hidden, bias=bias)
        yield from _linear(f"{path}.{k}", key_value, hidden, bias=bias)
        yield from _linear(f"{path}.{v}", key_value, hidden, bias=bias)
        yield from _linear(f"{path}.{out}", hidden, query, bias=bias)
        norms = _text_norms(c) if q == "to_q" else ("norm_added_q", "norm_added_k")
        yield from ((f"{path}.{norm}.weight", (head_dim,), "norm") for norm in norms)


def _text_norms(c: Mapping[str, Any]) -> tuple[str, ...]:
    if c["qk_norm_for_text"]:
        return ("norm_q", "norm_k")
    return ("k_norm_und_for_gen",) if c["use_und_k_norm_for_gen"] else ()


def _linear(path: str, outputs: int, inputs: int, *, bias: bool = True) -> Iterator[Described]:
    yield f"{path}.weight", (outputs, inputs), "linear"
    if bias:
        yield f"{path}.bias", (outputs,), "linear"


def _domain_linear(path: str, inputs: int, outputs: int, domains: int) -> Iterator[Described]:
    """A linear layer per embodiment, kept as two embeddings."""
    yield f"{path}.fc.weight", (domains, inputs * outputs), "embedding"
    yield f"{path}.bias.weight", (domains, outputs), "embedding"
