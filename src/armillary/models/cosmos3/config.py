"""The config of `Cosmos3OmniTransformer` (diffusers 0.42.1): what the class assumes and what it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from armillary.errors import Problem, list_choices

DEFAULTS: Mapping[str, Any] = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "patch_latent_dim": 192,
    "action_dim": None,
    "action_gen": False,
    "num_embodiment_domains": 32,
    "sound_dim": None,
    "sound_gen": False,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "qk_norm_for_text": True,
    "use_und_k_norm_for_gen": False,
}
"""What the class assumes where a config is silent; only settings that decide names or shapes."""

FP32_MODULES = ("time_embedder",)
"""Kept in float32 whatever the model's dtype (`_keep_in_fp32_modules` of the class)."""

_MOST_LAYERS = 4096
"""Beyond it a config is broken, and writing its parameters down would take hours."""

_ACTIVATIONS = ("silu", "relu2")
_COUNTS = tuple(name for name, default in DEFAULTS.items() if type(default) is int)
_COUNTS_OF = {"action_gen": "action_dim", "sound_gen": "sound_dim"}
"""Switch -> the count that only matters where it is on."""


def config_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything about a complete config that no model can have."""
    counts = [*_COUNTS, *(name for switch, name in _COUNTS_OF.items() if config[switch])]
    wrong = {name for name in counts if type(config[name]) is not int or config[name] < 1}
    for name in sorted(wrong):
        yield Problem("config-count", f"{name}={config[name]!r} is no count", "use a whole number from 1 up")
    layers = config["num_hidden_layers"]
    if "num_hidden_layers" not in wrong and layers > _MOST_LAYERS:
        what = f"num_hidden_layers={layers} is more than any model has"
        yield Problem("config-count", what, f"use at most {_MOST_LAYERS}")
    if config["hidden_act"] not in _ACTIVATIONS:
        what = f"hidden_act={config['hidden_act']!r} is not known"
        yield Problem("config-activation", what, f"use {list_choices(_ACTIVATIONS)}")
    query, key_value = config["num_attention_heads"], config["num_key_value_heads"]
    if wrong.isdisjoint({"num_attention_heads", "num_key_value_heads"}) and query % key_value:
        what = f"num_key_value_heads={key_value} does not divide num_attention_heads={query}"
        yield Problem("config-heads", what, "every K/V head serves equally many query heads")
