"""Why a plan's key matched nothing: the part of the path that resolved and the names beside it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from armillary.errors import Problem, list_choices

Tree: TypeAlias = Mapping[str, Any]
"""Module paths as nested mappings, see `Skeleton.tree`."""


@dataclass(frozen=True)
class Match:
    """What a key found: the module paths, and how many blocks of its wildcard had none."""

    paths: tuple[str, ...]
    absent: int = 0


def match_key(key: str, tree: Tree) -> Match:
    """Walk `key` down a skeleton's tree; `*` stands for every numbered child."""
    ends = list(_walk(key.split("."), tree))
    paths = tuple(path for path, node in ends if node is not None)
    return Match(paths, absent=len(ends) - len(paths))


def wildcard_problem(label: str, key: str, tree: Tree) -> Problem | None:
    """A wildcard over something that is there but is not a list of blocks."""
    segments = key.split(".")
    for position, segment in enumerate(segments):
        if segment != "*":
            continue
        for path, node in _walk(segments[:position], tree):
            if node is not None and not (node and all(child.isdigit() for child in node)):
                return Problem(
                    "wildcard-list",
                    f"{label}: {path or 'the model itself'} is not a list of blocks",
                    f"name its parts: {list_choices(sorted(node)[:6])}" if node else "name the layer itself",
                )
    return None


def container_problem(label: str, found: Match, modules: Collection[str]) -> Problem | None:
    """A key that names a block instead of a layer in it."""
    for path in found.paths:
        if path not in modules:
            inside = sorted({name[len(path) + 1 :] for name in modules if name.startswith(f"{path}.")})
            return Problem(
                "style-fits",
                f"{label}: {path} has no parameters of its own to split",
                f"name the layers inside it: {list_choices(inside[:6])}",
            )
    return None


def unmatched(label: str, key: str, tree: Tree, model_class: str) -> Problem:
    """The problem of a required key that names nothing: what resolved, and the closest names."""
    segments = key.split(".")
    there = _reach(segments, tree)
    where = (
        f"{'.'.join(segments[:there])} exists, {segments[there]!r} in it does not"
        if there
        else "no part of it exists"
    )
    return Problem(
        "key-matches-nothing",
        f"{label} matches nothing in {model_class}: {where}",
        f"{did_you_mean(_suggestions(key, tree))}"
        "wrap the entry in Optional(...) if some checkpoints lack the module",
    )


def _suggestions(key: str, tree: Tree) -> list[str]:
    """The key without its slip; where it is no slip also what resembles it elsewhere, four names at most."""
    beside = mended(key, tree)
    if any(one_slip(key, right) for right in beside):
        return beside
    layers = sorted({key_of(path, tree) for path in _layers(tree)})
    elsewhere = [layer for layer in layers if layer.endswith(f".{key}")] or near(key, layers)
    return list(dict.fromkeys([*beside, *elsewhere]))[:4]


def mended(key: str, tree: Tree) -> list[str]:
    """A key that names nothing, with its first wrong segment replaced by each of the names near it.

    What follows that segment is left out where the near name does not have it.
    """
    segments = key.split(".")
    there = _reach(segments, tree)
    before, wrong, after = segments[:there], segments[there], segments[there + 1 :]
    names = sorted({name for _, node in _walk(before, tree) for name in node or ()})
    heads = [[*before, name] for name in near(wrong, names)]
    return [".".join([*head, *after] if _exists([*head, *after], tree) else head) for head in heads]


def near(name: str, names: Iterable[str]) -> list[str]:
    """The names most like `name`, best first: all that are one slip away, else three that resemble it."""
    candidates = list(names)
    slips = [candidate for candidate in candidates if one_slip(name, candidate)]
    return slips or difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)


def did_you_mean(names: Sequence[str]) -> str:
    """The beginning of a fix: "did you mean to_q or to_k? Otherwise ", nothing without near names."""
    return f"did you mean {list_choices(names)}? Otherwise " if names else ""


def one_slip(wrong: str, right: str) -> bool:
    """Whether one character too many, too few, another or two swapped make `wrong` of `right`.

    Another number is no slip: `fc1` and `fc2` are two layers, and `norm` and `norm1` may be.
    """
    return one_character_off(wrong, right) and not _differ_in_number(wrong, right)


def one_character_off(wrong: str, right: str) -> bool:
    """The same, numbers or not."""
    a, b, _ = _difference(wrong, right)
    return {len(a), len(b)} in ({0, 1}, {1}) or (len(a) == 2 and a == b[::-1])


def _differ_in_number(wrong: str, right: str) -> bool:
    """Whether all that differs are digits, where a number ends."""
    a, b, after = _difference(wrong, right)
    return (a + b).isdigit() and not after[:1].isalpha()


def _difference(one: str, other: str) -> tuple[str, str, str]:
    """What is different in each, and what follows in both."""
    start = _alike(one, other)
    a, b = one[start:], other[start:]
    end = _alike(a[::-1], b[::-1])
    return a[: len(a) - end], b[: len(b) - end], a[len(a) - end :]


def _alike(a: str, b: str) -> int:
    """How many letters at the beginning are the same."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pattern_of(path: str) -> str:
    """The path with block numbers written as `*`: one name for the same layer of every block."""
    return ".".join("*" if segment.isdigit() else segment for segment in path.split("."))


def key_of(path: str, tree: Tree) -> str:
    """The plan key that finds a module in every block: `*` for a block's number, not for a layer's.

    `blocks.3.ff.net.0.proj` is `blocks.*.ff.net.0.proj`: `net` is no list of blocks, its members differ.
    """
    segments: list[str] = []
    node = tree
    for segment in path.split("."):
        is_block = segment.isdigit() and all(child for child in node.values())
        segments.append("*" if is_block else segment)
        node = node.get(segment, {})
    return ".".join(segments)


def _walk(
    segments: Sequence[str], node: Tree, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Tree | None]]:
    """Where the segments lead: (path, node), or (path so far, None) where a block lacks the next segment."""
    if not segments:
        yield ".".join(path), node
        return
    head, *rest = segments
    for child in [name for name in node if name.isdigit()] if head == "*" else [head]:
        if child in node:
            yield from _walk(rest, node[child], (*path, child))
        else:
            yield ".".join(path), None


def _exists(segments: Sequence[str], tree: Tree) -> bool:
    return any(node is not None for _, node in _walk(segments, tree))


def _reach(segments: Sequence[str], tree: Tree) -> int:
    """How many segments of a path that leads nowhere still lead somewhere."""
    return next(count for count in range(len(segments)) if not _exists(segments[: count + 1], tree))


def _layers(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the modules without modules inside."""
    for child, node in tree.items():
        if node:
            yield from _layers(node, (*path, child))
        else:
            yield ".".join((*path, child))
