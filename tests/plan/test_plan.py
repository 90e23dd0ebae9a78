"""A plan: keys and styles, merged key by key, written as JSON, and everything wrong with it at once."""

import json

import pytest

from armillary import Colwise, Optional, PackedColwise, ParallelPlan, PlanError, Rowwise, VocabSplit, plan_for
from armillary.plan.context import ContextInput

SMALL = ParallelPlan({"embed": VocabSplit(), "blocks.*.up": "colwise", "blocks.*.down": "rowwise"})


def _rules(error: PlanError) -> list[str]:
    return [problem.rule for problem in error.problems]


def test_a_plan_holds_styles_whatever_form_they_were_written_in() -> None:
    plan = ParallelPlan({"a": "colwise", "b": {"packed_colwise": [1, 2]}, "c": {"optional": "rowwise"}})
    assert dict(plan) == {"a": Colwise(), "b": PackedColwise([1, 2]), "c": Optional(Rowwise())}
    assert len(plan) == 3


@pytest.mark.parametrize("plan", [SMALL, plan_for("Cosmos3OmniTransformer")], ids=["small", "cosmos3"])
def test_a_plan_comes_back_from_json_equal(plan: ParallelPlan) -> None:
    assert ParallelPlan(json.loads(json.dumps(plan.to_json())), source="a file") == plan


def test_a_plan_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        SMALL.entries["new"] = Colwise()  # type: ignore[index]


@pytest.mark.parametrize("key", ["", ".", "a..b", "a.", 3, None])
def test_a_key_is_a_dotted_path(key: str) -> None:
    with pytest.raises(PlanError, match="is not a module path; write a dotted path"):
        ParallelPlan({key: "colwise"})


def test_every_wrong_key_and_style_is_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        ParallelPlan(
            {"a..b": "colwise", "c": "colwize", "d": {"packed_colwise": []}, "e": {"optional": "rowise"}}
        )
    assert _rules(caught.value) == ["plan-key", "unknown-style", "packed-blocks", "unknown-style"]
    assert "plan key 'c': 'colwize' is not a style" in str(caught.value)


@pytest.mark.parametrize("entries", [["a", "colwise"], "colwise", 3])
def test_a_plan_is_an_object_of_keys_and_styles(entries: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="is not a plan; write an object of module paths and styles"):
        ParallelPlan(entries)


def test_overrides_replace_add_and_remove_key_by_key() -> None:
    merged = SMALL.merge({"embed": None, "blocks.*.up": PackedColwise([1, 1]), "head": Colwise(gather=True)})
    assert dict(merged) == {
        "blocks.*.up": PackedColwise([1, 1]),
        "blocks.*.down": Rowwise(),
        "head": Colwise(gather=True),
    }
    assert len(SMALL) == 3


def test_no_overrides_leave_the_plan_as_it_is() -> None:
    assert SMALL.merge(None) is SMALL
    assert SMALL.merge({}) == SMALL


def test_a_merged_plan_knows_where_each_key_comes_from() -> None:
    merged = SMALL.merge({"head": "colwise"}, source="config.json").merge({"blocks.*.up": "colwise"})
    assert merged.label("head") == "plan key 'head' (config.json)"
    assert merged.label("blocks.*.up") == "plan key 'blocks.*.up' (overrides)"
    assert merged.label("embed") == "plan key 'embed'"


def test_only_a_key_of_the_plan_can_be_removed() -> None:
    with pytest.raises(PlanError) as caught:
        SMALL.merge({"blocks.*.upp": None})
    assert str(caught.value) == (
        "plan key 'blocks.*.upp' (overrides) is not in the plan, so it cannot be removed; "
        "did you mean blocks.*.up? Otherwise drop it"
    )


def test_everything_wrong_with_overrides_is_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        SMALL.merge({"nothing": None, "embed": "vocab", "a..b": "colwise"}, source="plan.json")
    assert _rules(caught.value) == ["override-removes", "unknown-style", "plan-key"]
    assert all("(plan.json)" in problem.message for problem in caught.value.problems)


def test_overrides_that_are_no_object_are_refused_by_their_source() -> None:
    with pytest.raises(PlanError, match=r"config.json: \['colwise'\] is not a plan"):
        SMALL.merge(["colwise"], source="config.json")  # type: ignore[arg-type]


def test_the_context_of_a_plan_survives_a_merge() -> None:
    plan = ParallelPlan({"a": "colwise"}, {"": {"x": ContextInput(1)}})
    assert plan.merge({"b": "colwise"}).context == {"": {"x": ContextInput(1)}}
