"""What a tiny checkpoint may look like, named variants of it, and what is wrong with options that may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from armillary.errors import Problem, list_choices
from armillary.models.cosmos3.tiny.tokenizer import TOKENIZER_SIZE

ACTIVATIONS = ("silu", "relu2")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class TinyOptions:
    """What `armillary tiny` writes. Heads, widths and counts are the transformer's."""

    variant: str = "silu"
    """MLP activation: "silu" (gated, as Nano and Super) or "relu2" (no gate, as Edge)."""
    layers: int = 4
    hidden: int = 64
    heads: int = 8
    """Query heads."""
    kv_heads: int = 4
    """Key and value heads; divides `heads`."""
    head_dim: int = 16
    intermediate: int = 128
    """MLP width."""
    vocab: int = 320
    """Rows of `embed_tokens` and `lm_head`."""
    files: int = 1
    """Number of safetensors files of the transformer; above 1 there is an index."""
    seed: int = 0
    bias: bool = False
    """`attention_bias`: biases on all attention projections."""
    sound: bool = True
    """Sound heads in the transformer, and a sound tokenizer."""
    action: bool = True
    """Action heads in the transformer."""
    dtype: str = "float32"
    """Stored dtype of the transformer; its `time_embedder` and the other models are float32."""
    qk_norm_for_text: bool | None = None
    """Normed queries and keys on text; None: on for silu, off for relu2."""
    use_und_k_norm_for_gen: bool | None = None
    """An extra norm of text keys for generation, where text has none of its own; None: on for relu2 only."""

    @property
    def text_norm(self) -> bool:
        return self.variant == "silu" if self.qk_norm_for_text is None else self.qk_norm_for_text

    @property
    def k_norm_for_gen(self) -> bool:
        if self.use_und_k_norm_for_gen is None:
            return self.variant == "relu2" and not self.text_norm
        return self.use_und_k_norm_for_gen


VARIANTS: Mapping[str, TinyOptions] = MappingProxyType(
    {
        "silu": TinyOptions(),
        "relu2": TinyOptions(variant="relu2"),
        "silu-bias": TinyOptions(bias=True),
        "relu2-bias": TinyOptions(variant="relu2", bias=True),
        "silu-no-text-norm": TinyOptions(qk_norm_for_text=False),
        "silu-k-norm-for-gen": TinyOptions(qk_norm_for_text=False, use_und_k_norm_for_gen=True),
        "no-sound": TinyOptions(sound=False),
        "no-action": TinyOptions(action=False),
        "vision-only": TinyOptions(sound=False, action=False),
        "action": TinyOptions(sound=False, action=True),
    }
)
"""Every kind of module that a Cosmos 3 config can switch on or off, by name; for parity tests."""


def find_problems(options: TinyOptions) -> list[Problem]:
    """Everything about the options that no checkpoint can have; an empty list if they are right."""
    return [*_find_bad_values(options), *_find_bad_combinations(options)]


def _find_bad_values(options: TinyOptions) -> Iterator[Problem]:
    for name, legal in (("variant", ACTIVATIONS), ("dtype", DTYPES)):
        if (value := getattr(options, name)) not in legal:
            yield Problem("choice", f"{name}={value!r} is not known", f"use {list_choices(legal)}")
    for name in ("layers", "hidden", "heads", "kv_heads", "intermediate", "files"):
        if (count := getattr(options, name)) < 1:
            yield Problem("at-least-one", f"{name}={count} is less than 1", "use 1 or more")
    if options.head_dim < 6 or options.head_dim % 2:
        yield Problem(
            "head-dim",
            f"head_dim={options.head_dim}: rotary positions need pairs for time, height and width",
            "use an even number from 6 up",
        )
    if options.vocab < TOKENIZER_SIZE:
        message = f"vocab={options.vocab} is less than the {TOKENIZER_SIZE} token ids of the tokenizer"
        yield Problem("vocab", message, f"use {TOKENIZER_SIZE} or more")
    if not 0 <= options.seed < 2**63:
        yield Problem("seed", f"seed={options.seed} is out of range", "use 0 up to 2**63 - 1")


def _find_bad_combinations(options: TinyOptions) -> Iterator[Problem]:
    if options.heads >= 1 and options.kv_heads >= 1 and options.heads % options.kv_heads:
        divisors = [n for n in range(1, options.heads + 1) if options.heads % n == 0]
        message = f"kv_heads={options.kv_heads} does not divide heads={options.heads}"
        yield Problem("kv-heads-divide", message, f"use kv_heads {list_choices(divisors)}")
    if options.use_und_k_norm_for_gen and options.text_norm:
        yield Problem(
            "k-norm-for-gen",
            "use_und_k_norm_for_gen has no effect where qk_norm_for_text is on",
            "switch qk_norm_for_text off, or leave use_und_k_norm_for_gen out",
        )
