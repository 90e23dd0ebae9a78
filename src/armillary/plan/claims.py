"""Which key of a plan claims which module, and what is wrong with the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from armillary.errors import Problem
from armillary.plan.explain import (
    Match,
    container_problem,
    did_you_mean,
    match_key,
    mended,
    one_character_off,
    one_slip,
    unmatched,
    wildcard_problem,
)
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import Optional, Style


@dataclass(frozen=True)
class Claims:
    """What the keys of a plan found in a skeleton."""

    matches: Mapping[str, Match]
    """Plan key -> the module paths it found."""
    styles: Mapping[str, Style]
    """Module path -> the style of the key that claims it."""


def claim_modules(skeleton: Skeleton, plan: ParallelPlan, problems: list[Problem]) -> Claims:
    """Hold every key of `plan` against `skeleton`; what is wrong is added to `problems`."""
    matches = {key: match_key(key, skeleton.tree) for key, _ in plan}
    strangers = list(_strange_files(skeleton, plan, matches))
    problems.extend(strangers or _key_problems(skeleton, plan, matches))
    styles = _styles(skeleton, plan, matches, problems)
    problems.extend(_slips(skeleton, plan, matches, styles))
    return Claims(matches, styles)


def _strange_files(skeleton: Skeleton, plan: ParallelPlan, matches: Mapping[str, Match]) -> Iterator[Problem]:
    """Files of several keys of which not one names a module: one line, not one for every key."""
    keys: dict[str, list[str]] = {}
    for key, source in plan.sources.items():
        if source != "plan":
            keys.setdefault(source.rpartition(":")[0] or source, []).append(key)
    for source, theirs in keys.items():
        found = any(matches[key].paths or _one_slip_away(key, skeleton) for key in theirs)
        required = any(not isinstance(plan.entries[key], Optional) for key in theirs)
        if len(theirs) > 1 and required and not found:
            yield Problem(
                "plan-class",
                f"none of the {len(theirs)} keys of {source} names a module of "
                f"{skeleton.model_class}, not even nearly: {theirs[0]}, {theirs[1]}, ...",
                f"it seems to be a plan for another class; write one for {skeleton.model_class}",
            )


def _key_problems(skeleton: Skeleton, plan: ParallelPlan, matches: Mapping[str, Match]) -> Iterator[Problem]:
    for key, entry in plan:
        label, found = plan.label(key), matches[key]
        problem = wildcard_problem(label, key, skeleton.tree)
        problem = problem or container_problem(label, found, skeleton.modules)
        if not isinstance(entry, Optional):
            problem = problem or _missing(label, key, found, skeleton)
        if problem:
            yield problem


def _missing(label: str, key: str, found: Match, skeleton: Skeleton) -> Problem | None:
    """The problem of a required key that matches nothing, or only some blocks."""
    if not found.paths:
        return unmatched(label, key, skeleton.tree, skeleton.model_class)
    if not found.absent:
        return None
    there = len(found.paths)
    return Problem(
        "key-matches-some",
        f"{label} is on {there} of {there + found.absent} blocks of {skeleton.model_class}",
        "wrap the entry in Optional(...) if the others may lack it",
    )


def _styles(
    skeleton: Skeleton, plan: ParallelPlan, matches: Mapping[str, Match], problems: list[Problem]
) -> dict[str, Style]:
    """Module path -> style; two keys that claim one module are a problem."""
    owner: dict[str, str] = {}
    styles: dict[str, Style] = {}
    clashes: dict[tuple[str, str], str] = {}
    for key, entry in plan:
        for path in matches[key].paths:
            if path in owner:
                clashes.setdefault((owner[path], key), path)
            elif path in skeleton.modules:
                owner[path] = key
                styles[path] = entry.style if isinstance(entry, Optional) else entry
    problems.extend(
        Problem("two-keys", f"{plan.label(a)} and {plan.label(b)} both claim {path}", "keep one of them")
        for (a, b), path in clashes.items()
    )
    return styles


def intended_styles(skeleton: Skeleton, plan: ParallelPlan, claims: Claims) -> dict[str, Style]:
    """Module path -> style, as if keys with one slip had been written rightly.

    With it a slip is told as that alone, and not also as the layers that it leaves without a partner.
    """
    styles = dict(claims.styles)
    for key, entry in plan:
        rights = [] if claims.matches[key].paths else _one_slip_away(key, skeleton)
        if len(rights) == 1:
            for path in match_key(rights[0], skeleton.tree).paths:
                if path in skeleton.modules:
                    styles.setdefault(path, entry.style if isinstance(entry, Optional) else entry)
    return styles


def _one_slip_away(key: str, skeleton: Skeleton) -> list[str]:
    return [right for right in mended(key, skeleton.tree) if one_slip(key, right)]


def _slips(
    skeleton: Skeleton, plan: ParallelPlan, matches: Mapping[str, Match], styles: Mapping[str, Style]
) -> Iterator[Problem]:
    """Optional keys that match nothing while, one character away, there is a layer that no key claims."""
    for key, entry in plan:
        if not isinstance(entry, Optional) or matches[key].paths:
            continue
        # with numbers: that the layer is claimed by no key says enough
        for right in [right for right in mended(key, skeleton.tree) if one_character_off(key, right)]:
            paths = match_key(right, skeleton.tree).paths
            kinds = {p.kind for path in paths for p in skeleton.modules.get(path, {}).values()}
            if kinds & {*entry.style.kinds} and styles.keys().isdisjoint(paths):
                yield Problem(
                    "optional-slip",
                    f"{plan.label(key)} matches nothing, and no key claims {right}",
                    f"{did_you_mean([right])}remove the entry",
                )
