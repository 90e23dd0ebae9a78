"""A checkpoint cut to its first blocks, so that its proof fits a small machine. Headers only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from armillary.checkpoint.index import CheckpointIndex
from armillary.errors import CheckpointError, Problem
from armillary.models.registry import complete, family_of

_DEPTH = re.compile(r".*(layers|blocks|depth)")


def cut(
    index: CheckpointIndex, layers: int, names_of: Callable[[Mapping[str, Any]], Iterable[str]]
) -> CheckpointIndex:
    """The checkpoint with at most `layers` blocks in every list of blocks that its config counts.

    The config's numbers of layers are lowered, its lists of layers cut as the family says, and tensors that
    a model of that config does not have are not in the index any more, so that nobody reads them.

    Args:
        names_of: the parameters of a model with a config.

    Raises:
        CheckpointError: no number of blocks, or a config that does not say how many there are.
    """
    if layers < 1:
        raise CheckpointError(Problem("layers", f"layers={layers} is no number of blocks", "use 1 or more"))
    counts = depths(index)
    if not counts:
        what = f"{index.folder / 'config.json'} does not say how many blocks the model has"
        raise CheckpointError(Problem("layers", what, "leave --layers out"))
    fewer = {key: min(count, layers) for key, count in counts.items()}
    config = {**index.config, **fewer, **_lists(index.config, layers)}
    names = set(names_of(config))
    kept = {name: entry for name, entry in index.tensors.items() if name in names}
    return CheckpointIndex(index.folder, config, kept)


def depths(index: CheckpointIndex) -> dict[str, int]:
    """The config's numbers of blocks: those named so that are the length of some list in the checkpoint."""
    lengths = _list_lengths(index.tensors)
    return {
        key: value
        for key, value in index.config.items()
        if type(value) is int and _DEPTH.fullmatch(key) and value in lengths
    }


def _lists(config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
    """The config's lists of blocks, cut too."""
    family = family_of(str(config.get("_class_name")))
    return family.cut(complete(family, config), layers) if family and hasattr(family, "cut") else {}


def _list_lengths(names: Iterable[str]) -> set[int]:
    """How long the lists of modules are: "layers.0.to_q.weight" has one that is called "layers"."""
    members: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit():
                members[".".join(parts[:at])].add(part)
    return {len(numbers) for numbers in members.values()}
