"""What a proof says: as JSON that programs read, and as lines."""

import json
import math
from dataclasses import replace

import pytest

from armillary.layout import Layout
from armillary.proof.law import Divergence
from armillary.proof.report import OutputDistance, VerifyReport

GOOD = VerifyReport(
    layout=Layout(tp=2),
    ranks_equal=True,
    outputs={
        "latents": OutputDistance(relative_l2=1e-6, max_abs=0.5, tolerance=1e-5, rounding=1e-7),
        "sound": OutputDistance(relative_l2=2e-6, max_abs=0.1, tolerance=2e-5, rounding=5e-6),
    },
    divergence=None,
    tolerance_rule="the rule",
    model_class="Model",
    dtype="float32",
    layers=None,
    request=None,
    differing={},
    replicated_dtypes={"float32": 3},
    blocks={"layers.0": 1e-7},
    blocks_rounding={"layers.0": 2e-7},
    compared=9,
    split_fraction=1.0,
)
FAR = replace(
    GOOD,
    outputs={"output": OutputDistance(relative_l2=math.inf, max_abs=math.nan, tolerance=1e-5, rounding=None)},
    divergence=Divergence("layers.0.mlp", "layers.0", "output of layers.0.mlp", 3, math.inf, 1e-5),
    differing={"layers.0.mlp.weight": {"what": "bits", "ranks": [1]}},
)


def test_json_begins_with_the_agreed_keys_in_order() -> None:
    told = GOOD.to_json()
    assert list(told)[:8] == [
        "ok",
        "layout",
        "relative_l2",
        "max_abs",
        "ranks_equal",
        "first_divergence",
        "outputs",
        "tolerance",
    ]
    assert told["layout"] == {"cfg": 1, "ring": 1, "gather": 1, "ulysses": 1, "tp": 2}


def test_the_top_figures_are_the_worst() -> None:
    assert (GOOD.relative_l2, GOOD.max_abs, GOOD.tolerance) == (2e-6, 0.5, 2e-5)


def test_each_output_has_its_own_tolerance() -> None:
    beyond = replace(GOOD.outputs["latents"], relative_l2=1.5e-5)
    assert not replace(GOOD, outputs={**GOOD.outputs, "latents": beyond}).ok


@pytest.mark.parametrize(
    ("far", "tolerance", "why"),
    [
        (math.inf, math.inf, "no tolerance: one process alone computes no finite numbers"),
        (0.1, math.inf, "no tolerance: one process alone computes no finite numbers"),
        (math.inf, 1e-5, "not finite on the ranks"),
        (0.1, 1e-5, "too far"),
    ],
)
def test_numbers_that_are_none_prove_nothing_and_people_are_told_which(
    far: float, tolerance: float, why: str
) -> None:
    output = OutputDistance(relative_l2=far, max_abs=1.0, tolerance=tolerance, rounding=tolerance)
    report = replace(GOOD, outputs={"output": output})
    assert not report.ok
    assert any(line.startswith("output ") and line.endswith(why) for line in report.lines())


def test_unequal_ranks_or_a_differing_weight_are_not_ok_however_near_the_outputs_are() -> None:
    assert GOOD.ok
    assert not replace(GOOD, ranks_equal=False).ok
    assert not replace(GOOD, differing=FAR.differing).ok


def test_a_number_that_is_none_is_null_and_the_document_stays_json() -> None:
    told = json.loads(json.dumps(FAR.to_json(), allow_nan=False))
    assert (told["ok"], told["relative_l2"], told["outputs"]["output"]["max_abs"]) == (False, None, None)
    assert told["first_divergence"] == "layers.0.mlp"


def test_people_are_told_where_it_diverges_and_which_weight_differs() -> None:
    lines = list(FAR.lines())
    assert "first divergence: layers.0.mlp" in lines
    assert "weights      layers.0.mlp.weight differs in bits on rank 1" in lines
    assert lines[-1] == "not ok: the layout computes something else"


def test_people_are_told_the_rule_of_the_tolerance() -> None:
    assert "tolerance: the rule" in list(GOOD.lines())
