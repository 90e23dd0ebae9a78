"""Slips in the shipped plans: none is let through, and the right name is told."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from armillary import ArmillaryError, Layout, ParallelPlan, PlanError, Skeleton, resolve
from armillary.models.registry import families, known_classes, skeleton_for
from armillary.plan.explain import match_key
from armillary.plan.styles import Optional

LETTERS = "abcdefghijklmnopqrstuvwxyz_0123456789"


@cache
def _model(name: str) -> tuple[Skeleton, ParallelPlan]:
    """The first small config of a class, and the keys of its plan that find something there."""
    family = families()[name]
    skeleton = skeleton_for(name, next(iter(family.TINY.values())))
    there = {key: entry for key, entry in family.PLAN if match_key(key, skeleton.tree).paths}
    return skeleton, ParallelPlan(there)


def _slip(name: str, rng: random.Random) -> str:
    """One character inserted, deleted, substituted or swapped with the next one."""
    at, letter = rng.randrange(len(name)), rng.choice(LETTERS)
    return rng.choice(
        [
            name[:at] + letter + name[at:],
            name[:at] + name[at + 1 :],
            name[:at] + letter + name[at + 1 :],
            name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
        ]
    )


def _typos(count: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """(class, key, the key with a slip in one of its names); no slip that names another module."""
    rng = random.Random(seed)
    while count:
        name = rng.choice(known_classes())
        skeleton, plan = _model(name)
        key = rng.choice(list(plan.entries))
        segments = key.split(".")
        at = rng.choice([at for at, segment in enumerate(segments) if segment != "*"])
        wrong = _slip(segments[at], rng)
        typo = ".".join([*segments[:at], wrong, *segments[at + 1 :]])
        if wrong and typo not in plan.entries and not match_key(typo, skeleton.tree).paths:
            count -= 1
            yield name, key, typo


@pytest.mark.parametrize("seed", range(2))
def test_of_200_typos_all_are_refused_and_the_right_name_is_told(seed: int) -> None:
    told, passed = 0, []
    for name, key, typo in _typos(200, seed):
        skeleton, plan = _model(name)
        entries: dict[str, Any] = {(typo if k == key else k): entry for k, entry in plan}
        try:
            resolve(skeleton, Layout(), plan=ParallelPlan(entries))
            passed.append((name, key, typo))
        except PlanError as error:
            told += any(key in problem.fix for problem in error.problems if repr(typo) in problem.message)
    assert passed == []
    assert told >= 190


def test_the_plans_as_they_are_fit() -> None:
    for name in known_classes():
        skeleton, plan = _model(name)
        try:
            resolve(skeleton, Layout(), plan=plan)
        except ArmillaryError as error:
            pytest.fail(f"{name}: {error}")
    assert any(isinstance(entry, Optional) for name in known_classes() for _, entry in _model(name)[1])
