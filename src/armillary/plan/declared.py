"""The plan that a model class carries itself, as diffusers' classes do, understood as it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from armillary.errors import PlanError, Problem
from armillary.plan.plan import ParallelPlan


def declared_plan(model: object) -> ParallelPlan | None:
    """The plan of a model or a class with `_tp_plan`, `_get_tp_plan()` or `_cp_plan`, None without any.

    `_get_tp_plan()` goes before `_tp_plan`: a class that has both computes the one from the config.

    Raises `PlanError` for a class whose `_get_tp_plan` needs a model, and for a plan that is none.
    """
    cls = model if isinstance(model, type) else type(model)
    tensor, how = _tensor_entries(model, cls)
    context = getattr(model, "_cp_plan", None) or {}
    if not tensor and not context:
        return None
    return ParallelPlan(tensor or {}, source=f"{cls.__name__}.{how}").with_context(
        context, source=f"{cls.__name__}._cp_plan"
    )


def _tensor_entries(model: object, cls: type) -> tuple[Mapping[str, Any] | None, str]:
    """What the class says of its tensors, and by which name."""
    if getattr(cls, "_get_tp_plan", None) is None:
        return getattr(model, "_tp_plan", None), "_tp_plan"
    written = inspect.getattr_static(cls, "_get_tp_plan")
    if isinstance(model, type) and not isinstance(written, classmethod | staticmethod):
        raise PlanError(
            Problem(
                "plan-of-model",
                f"{cls.__name__}._get_tp_plan() needs a model, and this is a class",
                "pass the model; one on torch's meta device will do",
            )
        )
    return model._get_tp_plan(), "_get_tp_plan()"  # type: ignore[attr-defined]
