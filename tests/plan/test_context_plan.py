"""The context part of a plan: every form of an entry, what is refused, and which modules it finds."""

import json
from typing import Any

import pytest
from skeletons import skeleton
from torch import nn

from armillary import (
    Colwise,
    ContextInput,
    ContextOutput,
    Layout,
    Optional,
    ParallelPlan,
    PlanError,
    ResolvedPlan,
    resolve,
)
from armillary.plan.context import ContextEntry, context_to_json, parse_context

ENTRIES: list[ContextEntry | Optional] = [
    {"hidden_states": ContextInput(1, expected_dims=3)},
    {0: ContextInput(0, split_output=True), 1: Optional(ContextInput(0, split_output=True))},
    {"mask": Optional(ContextInput(1))},
    (ContextOutput(0),),
    (ContextOutput(1), Optional(ContextOutput(1, expected_dims=3))),
    Optional({"hidden_states": ContextInput(1)}),
    Optional((ContextOutput(1),)),
]


class Model(nn.Module):
    """A module without parameters among those with them, and one that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = nn.Identity()
        self.proj_in = nn.Linear(4, 4)
        self.proj_out = nn.Linear(4, 4)
        self.guidance = None

    def forward(self, hidden_states: Any, mask: Any = None) -> Any:
        return self.proj_out(self.rope(self.proj_in(hidden_states)))


def _resolved(context: dict[str, Any], model: Any = None) -> ResolvedPlan:
    return resolve(model or Model(), Layout(), plan=ParallelPlan({}, context))


def _refused(context: dict[str, Any]) -> str:
    with pytest.raises(PlanError) as caught:
        _resolved(context)
    return str(caught.value)


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_an_entry_comes_back_from_its_json_form(entry: ContextEntry | Optional) -> None:
    assert parse_context(json.loads(json.dumps(context_to_json(entry)))) == entry
    assert parse_context(entry) == entry


@pytest.mark.parametrize(
    "name", ["FluxTransformer2DModel", "QwenImageTransformer2DModel", "WanTransformer3DModel"]
)
def test_the_context_plans_of_diffusers_are_taken_as_they_are(name: str) -> None:
    import diffusers

    theirs = getattr(diffusers, name)._cp_plan
    plan = ParallelPlan({"a": "colwise"}, theirs)
    assert plan.context.keys() == theirs.keys()
    assert ParallelPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    "entry",
    [
        3,
        "x",
        [],
        {},
        {"a": 1},
        {"a": ContextOutput(1)},
        {0: ContextInput(1)},
        {"a": ContextInput(1, split_output=True)},
        ContextInput(1),
        {"a": {"split_dim": "1"}},
        {"a": {"split_dim": 1, "more": 2}},
        {"gather_dim": True},
        Optional("colwise"),
    ],
    ids=str,
)
def test_anything_else_is_refused_with_its_key(entry: object) -> None:
    with pytest.raises(PlanError, match="context key 'proj_out': "):
        ParallelPlan({}, {"proj_out": entry})


@pytest.mark.parametrize(
    "inner", [Optional(ContextInput(1)), Optional({"a": ContextInput(1)}), {"optional": {"gather_dim": 1}}]
)
def test_an_optional_is_not_wrapped_twice(inner: object) -> None:
    with pytest.raises(PlanError, match="says the same thing twice"):
        Optional(inner)


def test_an_optional_style_is_no_context_and_the_other_way_round() -> None:
    assert Optional("colwise").style == Colwise()
    with pytest.raises(PlanError, match=r"'proj_in': .* is not a style"):
        ParallelPlan({"proj_in": ContextOutput(1)})


def test_modules_without_parameters_are_found_and_the_model_itself_has_an_empty_key() -> None:
    context = {"": {"hidden_states": ContextInput(1)}, "rope": {0: ContextInput(1, split_output=True)}}
    assert set(_resolved(context).context.entries) == {"", "rope"}


def test_a_required_key_that_matches_nothing_is_refused() -> None:
    assert _refused({"proj_ot": ContextOutput(1)}) == (
        "context key 'proj_ot' matches nothing in Model: no part of it exists; did you mean proj_out? "
        "Otherwise wrap the entry in Optional(...) if some checkpoints lack the module"
    )


@pytest.mark.parametrize("absent", ["guidance", "later"])
def test_an_optional_entry_whose_module_is_absent_or_none_is_skipped_and_listed(absent: str) -> None:
    resolved = _resolved({absent: Optional(ContextOutput(1)), "proj_out": ContextOutput(1)})
    assert set(resolved.context.entries) == {"proj_out"}
    assert resolved.skipped_optional == (f"context {absent}",)


def test_an_argument_that_a_module_does_not_have_is_refused_unless_it_is_optional() -> None:
    line = "context key '': Model has no argument 'image'; it has hidden_states, mask"
    assert line in _refused({"": {"image": ContextInput(1)}})
    entry = {"image": Optional(ContextInput(1)), "mask": ContextInput(1)}
    assert _resolved({"": entry}).context.entries[""] == entry


def test_all_keys_that_match_a_module_count() -> None:
    one, other = {"hidden_states": ContextInput(1)}, {"mask": ContextInput(0)}
    model = nn.Module()
    model.blocks = nn.ModuleList([Model(), Model()])
    context = {"blocks.0": one, "blocks.*": other, "blocks.1": ContextOutput(1)}
    resolved = _resolved(context, model).context
    assert resolved.inputs == {"blocks.0": {**one, **other}, "blocks.1": other}
    assert resolved.outputs == {"blocks.1": (ContextOutput(1),)}


def test_what_headers_do_not_show_is_left_to_the_model() -> None:
    headers = skeleton({"proj_out.weight": (4, 4)})
    context = {"rope": {0: ContextInput(1, split_output=True)}, "proj_out": ContextOutput(1)}
    assert set(_resolved(context, headers).context.entries) == {"proj_out"}


def test_context_entries_are_merged_key_by_key() -> None:
    plan = ParallelPlan({"a": "colwise"}, {"x": ContextOutput(1), "y": ContextOutput(1)})
    merged = plan.merge({"tensor": {}, "context": {"x": None, "y": {"gather_dim": 2}}}, source="plan.json")
    assert merged.context == {"y": (ContextOutput(2),)}
    assert merged.context_label("y") == "context key 'y' (plan.json)"
    with pytest.raises(PlanError, match=r"context key 'z' .overrides. is not in the plan"):
        plan.merge({"context": {"z": None}})
