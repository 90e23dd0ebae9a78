"""Writes the skeletons that the advisor ships: names and shapes of well-known diffusers transformers.

    .venv/bin/python benchmarks/model_skeletons.py

Each class is built on meta from its published config; parameters that differ in their block's number alone
become one entry, so that a model is a few dozen lines. A test holds what is shipped against the classes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from armillary.models.meta import skeleton_on_meta
from armillary.plan.skeleton import Skeleton

ASSET = Path(__file__).parents[1] / "src" / "armillary" / "assets" / "models" / "diffusers.json"
_NUMBER = re.compile(r"\.(\d+)\.")


def main() -> None:
    """Fill in the skeletons of every model that the asset lists."""
    document = json.loads(ASSET.read_text())
    for name, entry in document["models"].items():
        skeleton = skeleton_on_meta(entry["model_class"], entry["transformer"], "bfloat16")
        entry["parameters"] = fold(skeleton)
        print(f"{name}: {skeleton.nbytes / 2e9:.2f} billion parameters, {len(entry['parameters'])} entries")
    ASSET.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def fold(skeleton: Skeleton) -> dict[str, list[Any]]:
    """Name with `{}` for the first number -> shape, kind, whether it stays float32, and the numbers."""
    folded: dict[str, list[Any]] = {}
    for name, parameter in skeleton.parameters.items():
        pattern = _NUMBER.sub(".{}.", name, count=1)
        number = _NUMBER.search(name)
        facts = [list(parameter.shape), parameter.kind, parameter.dtype == "float32"]
        key = pattern
        while key in folded and folded[key][:3] != facts:  # blocks of one list that differ in shape
            key += "#"
        entry = folded.setdefault(key, [*facts, []])
        if number:
            entry[3].append(int(number[1]))
    return {key: [*facts, _run(numbers)] for key, (*facts, numbers) in folded.items()}


def _run(numbers: list[int]) -> list[int] | str:
    """ "0-18" for a run of numbers."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return numbers


if __name__ == "__main__":
    main()
