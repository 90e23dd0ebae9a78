"""The skeleton of a diffusers class from its config: the class itself, built on meta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from armillary.checkpoint.dtypes import BY_NAME
from armillary.errors import CheckpointError, Problem
from armillary.models.registry import held_dtype, skeleton_of
from armillary.plan.skeleton import Skeleton


def skeleton_on_meta(model_class: str, config: Mapping[str, Any], dtype: str = "float32") -> Skeleton:
    """Every parameter in `dtype`, fp32-kept modules in float32.

    Raises `CheckpointError` for a config with which the class cannot be built.
    """
    with torch.device("meta"):
        model = build(model_class, config)
    skeleton = skeleton_of(model)
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    held = {name: held_dtype(name, BY_NAME[dtype], kept) for name in skeleton.parameters}
    return skeleton.with_dtypes({name: (dtype.name, dtype.itemsize) for name, dtype in held.items()})


def build(model_class: str, config: Mapping[str, Any]) -> Any:
    """The diffusers model of a config, with whatever weights its constructor makes.

    Raises `CheckpointError` when the constructor refuses the config.
    """
    import diffusers

    return constructed(getattr(diffusers, model_class), config)


def constructed(cls: Any, config: Mapping[str, Any]) -> Any:
    """A model of a diffusers class. Raises `CheckpointError` when the constructor refuses the config."""
    try:
        return cls.from_config(dict(config))
    except (TypeError, ValueError, ArithmeticError, RuntimeError, KeyError, IndexError) as error:
        raise CheckpointError(
            Problem("config-builds", f"no {cls.__name__} can be built from this config: {error}", "")
        ) from error
