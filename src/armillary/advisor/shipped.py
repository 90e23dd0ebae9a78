"""What ships with the package: configs of published models, and skeletons where no module writes them down.

A skeleton is a few dozen entries: a name with `{}` where a block's number stands, its shape and kind, and the
numbers (`benchmarks/model_skeletons.py` writes them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from armillary.checkpoint.dtypes import BY_NAME
from armillary.models.registry import family_of, with_facts
from armillary.plan.skeleton import Parameter, Skeleton


@dataclass(frozen=True)
class Facts:
    """Of a model that Armillary splits but does not generate with: what its own pipeline does."""

    spatial: int
    """Pixels of a side that one latent stands for."""
    temporal: int
    text_rows: int
    """Rows of the embedded prompt."""
    others: Mapping[str, int]
    """Parameters of the other components, which are loaded beside it."""
    embedded_guidance: bool
    """Guidance is an input, or baked in: there is one branch."""


@cache
def cosmos3() -> Mapping[str, Any]:
    """The published Cosmos 3 checkpoints."""
    return _asset("cosmos3.json")


@cache
def diffusers() -> Mapping[str, Any]:
    """Common sizes of the diffusers families, by name."""
    models: Mapping[str, Any] = _asset("diffusers.json")["models"]
    return models


def facts_of(entry: Mapping[str, Any]) -> Facts:
    """The facts of one of `diffusers()`."""
    return Facts(
        spatial=entry["vae_spatial"],
        temporal=entry["vae_temporal"],
        text_rows=entry["text_rows"],
        others=entry["others"],
        embedded_guidance=entry["embedded_guidance"],
    )


def skeleton_of_entry(entry: Mapping[str, Any], dtype: str) -> Skeleton:
    """The skeleton of one of `diffusers()`, with its weights in `dtype`."""
    family = family_of(entry["model_class"])
    assert family is not None, "only registered classes ship"
    bare = Skeleton(
        model_class=entry["model_class"],
        config={**family.DEFAULTS, **entry["transformer"]},
        parameters=dict(_unfolded(entry["parameters"], dtype)),
    )
    return with_facts(bare, family)


def _unfolded(folded: Mapping[str, Any], dtype: str) -> Iterator[tuple[str, Parameter]]:
    for pattern, (shape, kind, kept, numbers) in folded.items():
        held = BY_NAME["float32" if kept else dtype]
        parameter = Parameter(shape=tuple(shape), dtype=held.name, itemsize=held.itemsize, kind=kind)
        name = pattern.rstrip("#")
        if "{}" not in name:
            yield name, parameter
        for number in _numbers(numbers):
            yield name.replace("{}", str(number), 1), parameter


def _numbers(run: list[int] | str) -> list[int]:
    if isinstance(run, list):
        return run
    first, last = map(int, run.split("-"))
    return list(range(first, last + 1))


def _asset(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("armillary") / "assets" / "models" / file).read_text())
    return found
