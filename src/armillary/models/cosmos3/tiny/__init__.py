"""A random-weight Cosmos 3 checkpoint in the published folder layout, small enough for tests.

    transformer  vae  text_tokenizer  scheduler  sound_tokenizer  modular_model_index.json  README.md

The stock `diffusers.Cosmos3OmniModularPipeline.from_pretrained(folder)` loads it offline, wherever the
folder is moved. The same options give the same bytes.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from armillary.errors import RequestError
from armillary.models.cosmos3.tiny import parts
from armillary.models.cosmos3.tiny.folder import MARK, find_folder_problems, staged
from armillary.models.cosmos3.tiny.options import VARIANTS, TinyOptions, find_problems
from armillary.models.cosmos3.tiny.weights import Progress

__all__ = ["VARIANTS", "TinyOptions", "tiny_config", "write_tiny"]

# The widest published action (two hands) has 57 numbers.
_ACTION_DIM = 64
_PATCH = 2


def write_tiny(
    out: Path, options: TinyOptions, *, force: bool = False, progress: Progress | None = None
) -> Path:
    """Write the checkpoint into the folder `out` and return its absolute path.

    Args:
        out: a folder that is missing or empty; with `force` also an earlier checkpoint, which is replaced.
        progress: called with the transformer's bytes made so far and its bytes in all.

    Raises:
        RequestError: options that no Cosmos 3 model has, or a folder that cannot be written; nothing
            is left behind.
    """
    out = out.absolute()
    if problems := [*find_problems(options), *find_folder_problems(out, force)]:
        raise RequestError(problems)
    config = tiny_config(options)
    with staged(out) as stage:
        parts.write_transformer(
            stage / "transformer",
            config,
            seed=options.seed,
            dtype=options.dtype,
            files=options.files,
            progress=progress,
        )
        parts.write_vae(stage / "vae", options.seed)
        parts.write_scheduler(stage / "scheduler")
        parts.write_tokenizer(stage / "text_tokenizer")
        if options.sound:
            parts.write_sound_tokenizer(stage / "sound_tokenizer", options.seed)
        parts.write_index(stage, sound=options.sound)
        parts.write_defaults(stage)
        (stage / "README.md").write_text(_model_card(options), encoding="utf-8")
    return out


def tiny_config(options: TinyOptions) -> dict[str, Any]:
    """The keyword arguments of `Cosmos3OmniTransformer` for these options.

    Raises:
        RequestError: options that no Cosmos 3 model has.
    """
    if problems := find_problems(options):
        raise RequestError(problems)
    return {
        "attention_bias": options.bias,
        "head_dim": options.head_dim,
        "hidden_size": options.hidden,
        "intermediate_size": options.intermediate,
        "latent_channel": parts.LATENT_CHANNELS,
        "latent_patch_size": _PATCH,
        "patch_latent_dim": parts.LATENT_CHANNELS * _PATCH**2,
        "num_attention_heads": options.heads,
        "num_hidden_layers": options.layers,
        "num_key_value_heads": options.kv_heads,
        "rope_axes_dim": _rope_axes(options.head_dim),
        "action_dim": _ACTION_DIM if options.action else None,
        "action_gen": options.action,
        "sound_dim": parts.SOUND_DIM if options.sound else None,
        "sound_gen": options.sound,
        "vocab_size": options.vocab,
        "hidden_act": options.variant,
        "qk_norm_for_text": options.text_norm,
        "use_und_k_norm_for_gen": options.k_norm_for_gen,
    }


def _rope_axes(head_dim: int) -> list[int]:
    """Rotary pairs for time, height and width in the published proportion, 24 : 20 : 20 of 64."""
    pairs = head_dim // 2
    side = max(1, pairs * 20 // 64)
    return [pairs - 2 * side, side, side]


def _model_card(options: TinyOptions) -> str:
    chosen = {
        f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != f.default
    }
    made_with = ", ".join(f"{name}={value!r}" for name, value in chosen.items()) or "the default options"
    return (
        "# Random weights in the layout of Cosmos 3\n\n"
        "For tests only: pictures are noise, and nothing is derived from published weights.\n"
        f"{MARK} with {made_with}.\n"
    )
