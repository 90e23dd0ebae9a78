"""Which degrees a model allows with a plan, and why not another."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from armillary.errors import Problem, list_choices
from armillary.layout import Layout
from armillary.plan.explain import key_of
from armillary.plan.ranges import Segment
from armillary.plan.segments import Cut, head_segment
from armillary.plan.skeleton import HeadGroup, Skeleton
from armillary.plan.styles import Style


def degree_problems(cuts: Mapping[str, Cut], tp: int, skeleton: Skeleton) -> list[Problem]:
    """What is wrong with a tp degree that some segment does not allow, once per rule and values."""
    reasons: dict[Segment, str] = {}
    for name, (_, segments) in cuts.items():
        for segment in segments:
            if segment not in reasons:
                reasons[segment] = name
    broken = [segment for segment in reasons if not segment.allows(tp)]
    legal = legal_degrees(reasons) if broken else []
    above = min((s.units for s in reasons if s.copies), default=0)
    note = f" (K/V heads are replicated above {above})" if broken and 0 < above < max(legal) else ""
    return [
        Problem(
            "tp-divides",
            _why(segment, _layers(reasons[segment], skeleton), tp, skeleton.model_class),
            f"use tp={list_choices(legal)}{note}",
        )
        for segment in broken
    ]


def _layers(name: str, skeleton: Skeleton) -> str:
    """A parameter's name in all blocks."""
    path, _, leaf = name.rpartition(".")
    return f"{key_of(path, skeleton.tree)}.{leaf}"


def _why(segment: Segment, pattern: str, tp: int, model_class: str) -> str:
    if segment.copies:
        return f"tp={tp} neither divides nor is a multiple of the {segment.units} K/V heads of {model_class}"
    if segment.unit > 1:
        return f"tp={tp} does not divide the {segment.units} query heads of {model_class}"
    return f"tp={tp} does not divide the {segment.units} features of {pattern} in {model_class}"


def legal_degrees(segments: Mapping[Segment, object]) -> list[int]:
    """Every tp degree that all segments allow, ascending; 1 is always among them."""
    # a segment without copies allows only divisors of its units, so their gcd bounds the search
    bound = 0
    for segment in segments:
        if not (segment.copies or segment.uneven):
            bound = gcd(bound, segment.units)
    limit = bound or max((segment.units for segment in segments if segment.copies), default=1)
    return [tp for tp in range(1, limit + 1) if all(segment.allows(tp) for segment in segments)]


def ulysses_problems(
    groups: Mapping[str, HeadGroup], styles: Mapping[str, Style], layout: Layout, model_class: str
) -> list[Problem]:
    """What is wrong with a Ulysses degree that the heads of one tp rank cannot be exchanged over.

    Where tp does not share the heads out, a Ulysses degree that the whole heads do not allow is told too.
    """
    exchanged: dict[tuple[Segment, Segment], int] = {}
    for path, group in groups.items():
        tp = layout.tp if is_split(path, group, styles) else 1
        heads = head_segment(group, "query"), head_segment(group, "key_value")
        shared = tp if all(segment.allows(tp) for segment in heads) else 1
        query, key_value = (segment.count(shared) for segment in heads)
        exchanged[Segment(units=query), Segment(units=key_value, copies=True)] = shared
    return [
        Problem(
            "ulysses-divides",
            f"ulysses={layout.ulysses} cannot share the {query.units} query and {key_value.units} K/V heads "
            f"that a rank of {model_class} has at tp={tp}",
            f"use ulysses={list_choices(legal_degrees(dict.fromkeys([query, key_value])))}, "
            "or gather, which has no such rule",
        )
        for (query, key_value), tp in sorted(exchanged.items(), key=str)
        if not (query.allows(layout.ulysses) and key_value.allows(layout.ulysses))
    ]


def is_split(path: str, group: HeadGroup, styles: Mapping[str, Style]) -> bool:
    """Whether any projection of an attention module has a style."""
    return any(f"{path}.{child}" in styles for child in group.projections)
