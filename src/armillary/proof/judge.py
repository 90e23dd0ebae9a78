"""From what one process and the ranks have left to a `VerifyReport`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from armillary.models.coverage import split_fraction
from armillary.plan.resolve import ResolvedPlan
from armillary.proof.activations import Apart, places
from armillary.proof.case import Case
from armillary.proof.files import Files
from armillary.proof.law import (
    Divergence,
    block_of,
    by_block,
    first_divergence,
    is_routed,
    relative_l2,
    rule,
    tolerance,
)
from armillary.proof.report import OutputDistance, VerifyReport, replicated_dtypes
from armillary.proof.watch import Place

_Distances = dict[tuple[int, Place], float]


def judge(case: Case, files: Files, resolved: ResolvedPlan) -> VerifyReport:
    """Hold what the ranks computed against one process."""
    everyone: Sequence[Mapping[str, Any]] = files.read("ranks")
    apart = _worst([_distances(one["apart"]) for one in everyone])
    rounding = _distances(files.read("rounding") or [])
    outputs = _outputs(case, files)
    differing = _differing(everyone)
    report = VerifyReport(
        layout=case.layout,
        ranks_equal=all(one["outputs"] == everyone[0]["outputs"] for one in everyone),
        outputs=outputs,
        divergence=None,
        tolerance_rule=rule(case.dtype, next(iter(outputs.values())).rounding),
        model_class=resolved.skeleton.model_class,
        dtype=case.dtype,
        layers=case.layers,
        request=None if case.request is None else json.loads(case.request),
        differing=differing,
        replicated_dtypes=replicated_dtypes(everyone[0]["dtypes"]),
        blocks=by_block(apart),
        blocks_rounding=by_block(rounding),
        compared=len(apart),
        split_fraction=split_fraction(resolved),
    )
    order = places(files.activations)
    if report.ok:  # near enough in the end: only a layer that is surely wrong counts
        order = [(call, place) for call, place in order if rounding and not is_routed(place.module)]
    found = first_divergence(order, apart, rounding, case.dtype)
    return replace(report, divergence=found or _in_the_weights(differing))


def _outputs(case: Case, files: Files) -> dict[str, OutputDistance]:
    truth, ranks = files.read_outputs("float32"), files.read_outputs("ranks")
    again = files.read_outputs(case.yardstick) if case.yardstick else None
    assert truth.keys() == ranks.keys(), f"{list(truth)} in one process, {list(ranks)} on the ranks"
    outputs = {}
    for name, true in truth.items():
        rounding = None
        if again is not None:  # measured from the more exact of the two
            exact = case.yardstick == "float64"
            rounding = relative_l2(true, again[name]) if exact else relative_l2(again[name], true)
        outputs[name] = OutputDistance(
            relative_l2=relative_l2(ranks[name], true),
            max_abs=float((ranks[name].double() - true.double()).abs().max()),
            tolerance=tolerance(case.dtype, rounding),
            rounding=rounding,
        )
    return outputs


def _distances(rows: Sequence[Sequence[Any]]) -> _Distances:
    return {(call, Place(*place)): Apart(*apart).relative for call, place, apart in rows}


def _worst(ranks: Sequence[_Distances]) -> _Distances:
    worst: _Distances = {}
    for distances in ranks:
        for key, distance in distances.items():
            worst[key] = max(worst.get(key, 0.0), distance)
    return worst


def _differing(everyone: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name -> what differs, and on which ranks."""
    found: dict[str, dict[str, Any]] = {}
    for rank, one in enumerate(everyone):
        for name, what in one["differing"].items():
            found.setdefault(name, {"what": what, "ranks": []})["ranks"].append(rank)
    return found


def _in_the_weights(differing: Mapping[str, Any]) -> Divergence | None:
    """Where no activation stands out, the module of the first weight that differs."""
    for name in differing:
        module = name.rpartition(".")[0]
        return Divergence(module, block_of(module), f"{name} itself", 0, 0.0, 0.0)
    return None
