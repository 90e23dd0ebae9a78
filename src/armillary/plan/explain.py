"""Why a plan's key matched nothing: the part of the path that resolved and the names beside it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from armillary.errors import Problem, list_choices


@dataclass(frozen=True)
class Match:
    """What a key found: the module paths, and how many blocks of its wildcard had none."""

    paths: tuple[str, ...]
    absent: int = 0


def match_key(key: str, tree: Mapping[str, Any]) -> Match:
    """Walk `key` down a skeleton's tree; `*` stands for every numbered child."""
    paths: list[str] = []
    absent = 0
    for path, found in _walk(key.split("."), tree, ()):
        if found:
            paths.append(path)
        else:
            absent += 1
    return Match(tuple(paths), absent)


def _walk(segments: list[str], node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    if not segments:
        yield ".".join(path), True
        return
    head, rest = segments[0], segments[1:]
    if head == "*":
        for child in node:
            if child.isdigit():
                yield from _walk(rest, node[child], (*path, child))
    elif head in node:
        yield from _walk(rest, node[head], (*path, head))
    else:
        yield ".".join(path), False


def wildcard_problem(key: str, tree: Mapping[str, Any]) -> Problem | None:
    """A wildcard over something that is there but is not a list of blocks."""
    segments = key.split(".")
    for position, segment in enumerate(segments):
        if segment != "*":
            continue
        for path, node in _nodes(segments[:position], tree, ()):
            if node and not all(child.isdigit() for child in node):
                return Problem(
                    "wildcard-list",
                    f"plan key {key!r}: {path or 'the model itself'} is not a list of blocks",
                    f"name its parts: {list_choices(sorted(node)[:6])}",
                )
    return None


def container_problem(key: str, found: Match, modules: Mapping[str, Any]) -> Problem | None:
    """A key that names a block instead of a layer in it."""
    for path in found.paths:
        if path not in modules:
            inside = sorted({name[len(path) + 1 :] for name in modules if name.startswith(f"{path}.")})
            return Problem(
                "style-fits",
                f"plan key {key!r}: {path} has no parameters of its own to split",
                f"name the layers inside it: {list_choices(inside[:6])}",
            )
    return None


def _nodes(
    segments: list[str], node: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not segments:
        yield ".".join(path), node
        return
    head, rest = segments[0], segments[1:]
    for child in [c for c in node if c.isdigit()] if head == "*" else [head] if head in node else []:
        yield from _nodes(rest, node[child], (*path, child))


def unmatched(key: str, tree: Mapping[str, Any], model_class: str) -> Problem:
    """The problem of a required key that names nothing: what resolved, and the closest names."""
    segments = key.split(".")
    resolved = 0
    while resolved < len(segments) and any(_nodes(segments[: resolved + 1], tree, ())):
        resolved += 1
    prefix = segments[:resolved]
    siblings = sorted({child for _, node in _nodes(prefix, tree, ()) for child in node})
    wanted = segments[resolved] if resolved < len(segments) else segments[-1]
    beside = [pattern_of([*prefix, name]) for name in _near(wanted, siblings)]
    elsewhere = _near(key, sorted({pattern_of(path) for path in _leaves(tree, ())}))
    suggestions = list(dict.fromkeys([*beside, *elsewhere]))[:4]
    where = f"{'.'.join(prefix)} exists, {wanted!r} in it does not" if prefix else "no part of it exists"
    return Problem(
        "key-matches-nothing",
        f"plan key {key!r} matches nothing in {model_class}: {where}",
        (f"did you mean {list_choices(suggestions)}? " if suggestions else "")
        + "Wrap the entry in Optional(...) if some checkpoints lack the module",
    )


def pattern_of(segments: Iterable[str]) -> str:
    """The dotted path with block numbers written as `*`: one name for the same layer of every block."""
    return ".".join("*" if segment.isdigit() else segment for segment in segments)


def _near(name: str, names: list[str]) -> list[str]:
    return difflib.get_close_matches(name, names, n=3, cutoff=0.6)


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for child, node in tree.items():
        here = (*path, child)
        if not node:
            yield here
        yield from _leaves(node, here)
