"""All layouts for so many devices, judged and ranked; the smallest number of them; what doublings buy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from armillary.advisor.option import RESIDENCIES, Option, Question
from armillary.advisor.rules import layout_problems, residency_problems
from armillary.errors import LayoutError, Problem
from armillary.layout import Layout
from armillary.residency import Residency

MOST_IDLE = 4
"""Devices that may be left idle when fewer are faster."""

MOST_DEVICES = 64
"""The largest number that the smallest one is looked for in."""


@dataclass(frozen=True)
class Refused:
    """A layout that cannot be run, with every reason."""

    layout: Layout
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Found:
    """What a search found: options best first, and what was refused."""

    options: tuple[Option, ...]
    refused: tuple[Refused, ...]

    @property
    def best(self) -> Option | None:
        """The fastest that fits."""
        return next((option for option in self.options if option.fits), None)


def search(question: Question, devices: int, residencies: Iterable[Residency] | None = None) -> Found:
    """Every layout of exactly `devices` ranks; and those of fewer that are no slower than the best of them.

    So for an odd count that the model cannot be split by, the best use of most of the devices is found too.
    """
    options, refused = judge_all(question, layouts_of(question, devices), residencies)
    best = min((o.latency.seconds for o in options if o.fits), default=float("inf"))
    for fewer in range(devices - 1, max(devices // 2, devices - MOST_IDLE - 1), -1):
        others, _ = judge_all(question, layouts_of(question, fewer), residencies)
        fitting = [o for o in others if o.fits and o.latency.seconds < best]
        options += sorted(fitting, key=rank_key)[:1]
    return Found(tuple(sorted(options, key=rank_key)), tuple(refused))


def judge_all(
    question: Question, layouts: Iterable[Layout], residencies: Iterable[Residency] | None = None
) -> tuple[list[Option], list[Refused]]:
    """Each layout with each residency; None: all that the engine has."""
    places = possible_residencies(question) if residencies is None else list(residencies)
    options: list[Option] = []
    refused: list[Refused] = []
    for layout in layouts:
        if problems := layout_problems(question, layout):
            refused.append(Refused(layout, tuple(problems)))
            continue
        options += [question.evaluate(layout, residency) for residency in places]
    return options, refused


def possible_residencies(question: Question) -> list[Residency]:
    """Those of `RESIDENCIES` that the engine has."""
    if question.model.facts:  # streams know Cosmos 3's layers
        return [RESIDENCIES["device"]]
    return [place for place in RESIDENCIES.values() if not residency_problems(question.engine, place)]


def rank_key(option: Option) -> tuple[bool, float, int]:
    """What fits first, then the fastest, then the least memory, on the device and on the host together."""
    return not option.fits, round(option.latency.seconds, 3), option.memory.peak + option.memory.host


def layouts_of(question: Question, devices: int) -> Iterator[Layout]:
    """Every factorisation of `devices` into degrees; one alone for an engine with its own way to split,
    and for a family of which only tp is known."""
    if question.engine.own_split or question.model.facts:
        yield Layout(tp=devices) if question.model.facts else Layout(gather=devices)
        return
    for cfg in (1, 2):
        if devices % cfg:
            continue
        for tp in divisors(devices // cfg):
            for ulysses in divisors(devices // cfg // tp):
                outer = devices // cfg // tp // ulysses
                yield Layout(cfg=cfg, gather=outer, ulysses=ulysses, tp=tp)
                if outer > 1:
                    yield Layout(cfg=cfg, ring=outer, ulysses=ulysses, tp=tp)


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def smallest(question: Question, residencies: Sequence[Residency]) -> dict[str, Option | None]:
    """For every residency the option with the fewest devices of the card that fits; None: not with 64.

    Layouts of cfg, gather and tp are enough: Ulysses and ring need no less memory than they.
    """
    names = {name: place for name, place in RESIDENCIES.items() if place in residencies}
    found: dict[str, Option | None] = dict.fromkeys(names)
    for devices in range(1, MOST_DEVICES + 1):
        missing = {name: place for name, place in names.items() if found[name] is None}
        if not missing:
            break
        options, _ = judge_all(question, _frugal(question, devices), missing.values())
        for name, place in missing.items():
            fitting = [o for o in options if o.fits and o.residency == place]
            found[name] = min(fitting, key=rank_key, default=None)
    return found


def _frugal(question: Question, devices: int) -> Iterator[Layout]:
    own = question.engine
    for layout in layouts_of(question, devices):
        plain = layout.ulysses == layout.ring == 1
        if plain or own.name == "vllm-omni":
            yield layout


def doublings(question: Question, devices: int, residencies: Iterable[Residency] | None) -> dict[int, Option]:
    """The best option for 1, 2, 4, ... devices, up to twice as many as there are."""
    best: dict[int, Option] = {}
    count = 1
    while count <= min(2 * devices, MOST_DEVICES):
        options, _ = judge_all(question, layouts_of(question, count), residencies)
        if fitting := [option for option in options if option.fits]:
            best[count] = min(fitting, key=rank_key)
        count *= 2
    return best


def fixed(question: Question, layout: Layout, residencies: Iterable[Residency] | None) -> Found:
    """One layout, given by flags; it is judged whether it fits or not.

    Raises `LayoutError` where the engine cannot run it.
    """
    options, refused = judge_all(question, [layout], residencies)
    if refused:
        raise LayoutError(refused[0].problems)
    return Found(tuple(sorted(options, key=rank_key)), ())
