"""The configs of published checkpoints, by their name on the hub, for what is asked before a download.

`assets/models/published.json` holds, class by class, in what a checkpoint's config differs from the class of
diffusers 0.42.1. It was written down from the classes' own defaults and the models' published sizes, and is
held against their number of parameters; where a folder is at hand, its config.json is the truth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from armillary.models.registry import skeleton_for
from armillary.plan.skeleton import Skeleton


@dataclass(frozen=True)
class Published:
    """The transformer of one published checkpoint."""

    name: str
    """On the hub."""
    model_class: str
    config: Mapping[str, Any]
    """What differs from the class's defaults."""

    def skeleton(self, dtype: str = "bfloat16") -> Skeleton:
        """Its names, shapes and dtypes; the class is built on meta, which imports diffusers."""
        return skeleton_for(self.model_class, self.config, dtype)


@cache
def published() -> Mapping[str, Published]:
    """Every checkpoint that is known, by its name, class by class."""
    text = (files("armillary") / "assets" / "models" / "published.json").read_text()
    known: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return {
        name: Published(name, model_class, config)
        for model_class, configs in known.items()
        for name, config in configs.items()
    }
