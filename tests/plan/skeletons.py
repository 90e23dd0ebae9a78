"""Skeletons written down by hand, for tests that need no model."""

from collections.abc import Iterable, Mapping
from typing import Any

from armillary import Skeleton
from armillary.plan.skeleton import HeadGroup, Parameter

Shape = tuple[int, ...]


def skeleton(shapes: Mapping[str, Shape], heads: Iterable[HeadGroup] = (), **others: Any) -> Skeleton:
    """float32 linear layers of these shapes; a name with "embed" is an embedding, with "norm" neither."""
    parameters = {name: Parameter(shape, "float32", 4, _kind(name)) for name, shape in shapes.items()}
    return Skeleton("Toy", {}, parameters, tuple(heads), **others)


def blocks(count: int, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The same layers in every one of `count` blocks."""
    return {f"blocks.{block}.{name}": shape for block in range(count) for name, shape in shapes.items()}


def _kind(name: str) -> str:
    return "embedding" if "embed" in name else "other" if "norm" in name else "linear"
