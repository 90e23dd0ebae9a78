"""What a model does differently in its forward, once its weights are in place; and the way back."""

from __future__ import annotations

from typing import Any

from armillary.models.registry import family_of
from armillary.parallel.context import Context
from armillary.parallel.context_plan import use_context_plan
from armillary.parallel.degrees import runs_context
from armillary.parallel.inputs import compare_inputs
from armillary.parallel.mesh import Mesh
from armillary.parallel.residency import MovedWeights
from armillary.plan.resolve import ResolvedPlan

_UNDO = "_armillary_forward"


def change_forward(
    model: Any, resolved: ResolvedPlan, mesh: Mesh, prefill: bool, weights: MovedWeights | None
) -> None:
    """Make a model run the mesh's context axes, compute each prompt once, or fetch weights block by block.

    Ranks that call it with different shapes or dtypes are told, where they would hang.
    """
    undo = [compare_inputs(model, mesh)]
    family = family_of(model)
    splits = runs_context(mesh.layout)
    if family is not None and family.CONTEXT:
        if prefill or weights is not None or splits:
            undo.append(family.reuse_prompts(model, mesh, weights))
    elif splits:
        undo.append(use_context_plan(model, Context.of(mesh.groups), resolved))
    setattr(model, _UNDO, undo)


def restore_forward(model: Any) -> None:
    """Take back what `change_forward` has done, where it has; weights that live elsewhere are not fetched."""
    for undo in reversed(vars(model).pop(_UNDO, [])):
        undo()
