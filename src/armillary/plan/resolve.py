"""`resolve_plan`: a plan held against a skeleton and a layout. The one place where shards are decided.

The loader reads the ranges found here, the advisor adds them up, the verifier puts them back
together. Nothing here needs torch, so the dry run and the real one are the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from armillary.errors import LayoutError, PlanError, Problem, Refusals
from armillary.layout import Layout
from armillary.plan.claims import Claims, claim_modules, intended_styles
from armillary.plan.context import ResolvedContext, resolve_context
from armillary.plan.degrees import degree_problems, is_split, legal_degrees, ulysses_problems
from armillary.plan.explain import Match, match_key, pattern_of
from armillary.plan.heads import uncounted_problems
from armillary.plan.pairing import pairing_problems
from armillary.plan.plan import ParallelPlan
from armillary.plan.projections import projection_problems
from armillary.plan.ranges import Shard, cut
from armillary.plan.segments import Cut, head_segment, segments_of_all
from armillary.plan.skeleton import HeadGroup, Skeleton
from armillary.plan.styles import Optional, Style


@dataclass(frozen=True)
class LocalHeads:
    """Head counts of one attention module: what the whole model has and what one rank has."""

    full_query: int
    full_key_value: int
    local_query: int
    local_key_value: int
    head_dim: int
    counts: Mapping[str, str]
    """Attribute of the module that holds a count -> what it counts; see `HeadGroup.counts`."""
    arguments: Mapping[str, int] = field(default_factory=dict)
    """See `HeadGroup.arguments`."""

    def local(self, count: str) -> int:
        """The local value of a count; see `Count`."""
        return {
            "query": self.local_query,
            "key_value": self.local_key_value,
            "queries_per_key_value": self.local_query // self.local_key_value,
            "query_features": self.local_query * self.head_dim,
            "key_value_features": self.local_key_value * self.head_dim,
        }[count]


@dataclass(frozen=True)
class ResolvedPlan:
    """What every rank of a layout holds of a model.

    `shards` maps full parameter names to their `Shard`, split ones only; every other parameter is in
    `replicated`. `skipped_optional` has one entry per optional plan key that matched nothing; keys of the
    context part stand there as "context KEY".
    """

    layout: Layout
    skeleton: Skeleton
    plan: ParallelPlan
    shards: Mapping[str, Shard]
    replicated: tuple[str, ...]
    skipped_optional: tuple[str, ...]
    styles: Mapping[str, Style]
    """Module path -> the style that applies to it."""
    heads: Mapping[str, LocalHeads]
    """Path of an attention module -> its head counts."""
    matches: Mapping[str, Match]
    """Plan key -> the modules it found, and how many blocks have none."""
    cuts: Mapping[str, Cut]
    """Every parameter that the plan splits over more than one rank -> its dimension and segments."""
    context: ResolvedContext
    """Where the sequence is split and gathered."""

    @property
    def legal_tp(self) -> list[int]:
        """The tp degrees that the model allows with this plan, ascending."""
        return legal_degrees({segment: None for _, segments in self.cuts.values() for segment in segments})

    def local_shape(self, name: str, tp_rank: int) -> tuple[int, ...]:
        """Shape of parameter `name` on one tp rank."""
        shape = self.skeleton.parameters[name].shape
        return self.shards[name].local_shape(shape, tp_rank) if name in self.shards else shape

    def bytes_on(self, tp_rank: int, *, leave_out: Collection[str] = ()) -> int:
        """Bytes of all parameters that one tp rank holds, split and replicated, but those of the modules
        to leave out."""
        unused = tuple(f"{module}." for module in leave_out)
        total = 0
        for name, parameter in self.skeleton.parameters.items():
            if not name.startswith(unused):
                shard, whole = self.shards.get(name), parameter.nbytes
                total += whole if shard is None else shard.local_bytes(whole, tp_rank)
        return total


def resolve_plan(skeleton: Skeleton, plan: ParallelPlan, layout: Layout) -> ResolvedPlan:
    """Decide what every rank holds. `armillary.resolve` finds skeleton and plan, then calls this.

    Raises `PlanError` when the plan does not describe the model, `LayoutError` when the model cannot
    be split over `layout.tp` ranks, `ArmillaryError` when both are so; with every problem and, for a degree,
    the legal ones.
    """
    found = examine(skeleton, plan, layout)
    refusals = Refusals()
    refusals.add(PlanError, found.plan_problems)
    refusals.add(LayoutError, found.layout_problems)
    refusals.raise_if_any()
    heads = _local_heads(found.groups, found.claims.styles, layout.tp)
    shards = _cut_all(found.cuts, layout.tp) if layout.tp > 1 else {}
    return ResolvedPlan(
        layout=layout,
        skeleton=skeleton,
        plan=plan,
        shards=MappingProxyType(shards),
        replicated=tuple(name for name in skeleton.parameters if name not in shards),
        skipped_optional=found.skipped_optional,
        styles=MappingProxyType(found.claims.styles),
        heads=MappingProxyType(heads),
        matches=MappingProxyType(found.claims.matches),
        cuts=MappingProxyType(found.cuts),
        context=found.context,
    )


@dataclass(frozen=True)
class Examination:
    """All that a plan finds in a skeleton, right or wrong."""

    plan_problems: tuple[Problem, ...]
    layout_problems: tuple[Problem, ...]
    claims: Claims
    groups: Mapping[str, HeadGroup]
    """Path of an attention module -> its head facts."""
    cuts: Mapping[str, Cut]
    """See `ResolvedPlan.cuts`."""
    context: ResolvedContext
    skipped_optional: tuple[str, ...]
    """See `ResolvedPlan`."""


def examine(skeleton: Skeleton, plan: ParallelPlan, layout: Layout) -> Examination:
    """Hold a plan and a layout against a skeleton without raising; `check` shows what was found beside what
    is wrong."""
    problems: list[Problem] = [*_for_another_class(plan, skeleton)]
    claims = claim_modules(skeleton, plan, problems)
    styles = claims.styles
    groups = _attention_modules(skeleton)
    cuts = segments_of_all(skeleton, styles, groups, problems)
    intended = intended_styles(skeleton, plan, claims)
    problems.extend(_half_split(skeleton, intended, groups))
    problems.extend(projection_problems(skeleton, intended, groups))
    if layout.tp > 1:
        problems.extend(uncounted_problems(skeleton, styles, groups))
    problems.extend(pairing_problems(skeleton, intended, cuts, claims.matches))
    context = resolve_context(skeleton, plan.context, plan.context_label, problems)
    return Examination(
        plan_problems=tuple(problems),
        layout_problems=(
            *degree_problems(cuts, layout.tp, skeleton),
            *ulysses_problems(groups, intended, layout, skeleton.model_class),
        ),
        claims=claims,
        groups=groups,
        cuts=cuts,
        context=context,
        skipped_optional=(
            *(key for key, entry in plan if isinstance(entry, Optional) and not claims.matches[key].paths),
            *(f"context {key}" for key in context.skipped),
        ),
    )


def _for_another_class(plan: ParallelPlan, skeleton: Skeleton) -> Iterator[Problem]:
    """A plan that says which class it is for, and it is another."""
    if plan.model_class not in (None, skeleton.model_class):
        yield Problem(
            "plan-class",
            f"the plan is for {plan.model_class}, and the model is a {skeleton.model_class}",
            f"use a plan for {skeleton.model_class}, or mend its class",
        )


def _attention_modules(skeleton: Skeleton) -> dict[str, HeadGroup]:
    """Path of every attention module -> its head group."""
    return {path: group for group in skeleton.heads for path in match_key(group.module, skeleton.tree).paths}


def _half_split(
    skeleton: Skeleton, styles: Mapping[str, Style], groups: Mapping[str, HeadGroup]
) -> Iterator[Problem]:
    """Attention modules with some projections split and some whole: heads must stay with their keys."""
    faults: dict[str, Problem] = {}
    for path, group in groups.items():
        there = [child for child in group.projections if f"{path}.{child}" in skeleton.modules]
        split = [child for child in there if f"{path}.{child}" in styles]
        whole = [child for child in there if f"{path}.{child}" not in styles]
        if split and whole:
            pattern = pattern_of(path)
            faults[pattern] = Problem(
                "heads-together",
                f"{pattern} has {', '.join(split)} split and {', '.join(whole)} whole",
                "give each of them a style, or none",
            )
    yield from faults.values()


def _cut_all(cuts: Mapping[str, Cut], tp: int) -> dict[str, Shard]:
    """One `Shard` per parameter; equal cuts share one, a large model has few different ones."""
    shared: dict[Cut, Shard] = {}
    shards: dict[str, Shard] = {}
    for name, key in cuts.items():
        if key not in shared:
            shared[key] = cut(key[0], key[1], tp)
        shards[name] = shared[key]
    return shards


def _local_heads(
    groups: Mapping[str, HeadGroup], styles: Mapping[str, Style], tp: int
) -> dict[str, LocalHeads]:
    heads = {}
    for path, group in groups.items():
        degree = tp if is_split(path, group, styles) else 1
        heads[path] = LocalHeads(
            full_query=group.query_heads,
            full_key_value=group.key_value_heads,
            local_query=head_segment(group, "query").count(degree),
            local_key_value=head_segment(group, "key_value").count(degree),
            head_dim=group.head_dim,
            counts=group.counts,
            arguments=group.arguments,
        )
    return heads
