"""Plans that a class carries itself, in each of the ways in which classes do."""

from typing import Any, ClassVar

import pytest
from torch import nn

from armillary import ContextOutput, ParallelPlan, PlanError
from armillary.plan.declared import declared_plan

PLAN = {"up": "colwise", "down": "rowwise"}


class OfModel(nn.Module):
    wide = True

    def _get_tp_plan(self) -> dict[str, str]:
        return PLAN if self.wide else {}


class OfClass(nn.Module):
    _tp_plan: ClassVar = {"old": "colwise"}

    @classmethod
    def _get_tp_plan(cls) -> dict[str, str]:
        return PLAN


class Attribute(nn.Module):
    _tp_plan: ClassVar = PLAN
    _cp_plan: ClassVar = {"down": ContextOutput(1)}


class OnlyContext(nn.Module):
    _tp_plan = None
    _cp_plan: ClassVar = {"down": ContextOutput(1)}


@pytest.mark.parametrize("model", [OfModel(), OfClass, OfClass(), Attribute, Attribute()])
def test_a_plan_is_found_as_attribute_and_as_method(model: Any) -> None:
    plan = declared_plan(model)
    assert plan is not None
    assert plan.entries == ParallelPlan(PLAN).entries


def test_its_rules_say_where_they_come_from() -> None:
    plan = declared_plan(Attribute)
    assert plan is not None
    assert plan.label("up") == "plan key 'up' (Attribute._tp_plan)"
    assert plan.context_label("down") == "context key 'down' (Attribute._cp_plan)"


def test_a_class_may_declare_only_where_its_sequence_is_split() -> None:
    plan = declared_plan(OnlyContext())
    assert plan is not None
    assert not plan.entries
    assert plan.context == {"down": (ContextOutput(1),)}


@pytest.mark.parametrize("model", [nn.Linear, nn.Linear(2, 2), str])
def test_a_class_without_one_has_none(model: object) -> None:
    assert declared_plan(model) is None


def test_a_method_that_needs_a_model_is_not_called_on_its_class() -> None:
    with pytest.raises(
        PlanError, match=r"OfModel._get_tp_plan.. needs a model, and this is a class; pass the"
    ):
        declared_plan(OfModel)


def test_a_plan_that_is_none_is_refused_by_its_name() -> None:
    class Wrong(nn.Module):
        _tp_plan: ClassVar = {"up": "colwize"}

    with pytest.raises(PlanError, match=r"plan key 'up' \(Wrong._tp_plan\): 'colwize' is not a style"):
        declared_plan(Wrong)
