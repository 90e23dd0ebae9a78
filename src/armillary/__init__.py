"""Armillary: large diffusion and omni transformers on several devices from one declarative plan.

The public names are the keys of `_HOME`; each is imported when it is first used, so that
`import armillary` costs neither torch nor diffusers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armillary.engine.generate import (
        GenerationResult as GenerationResult,
        generate as generate,
    )
    from armillary.engine.request import (
        GenerationRequest as GenerationRequest,
    )
    from armillary.errors import (
        ArmillaryError as ArmillaryError,
        CheckpointError as CheckpointError,
        EngineError as EngineError,
        LayoutError as LayoutError,
        PlanError as PlanError,
        RequestError as RequestError,
    )
    from armillary.layout import (
        Layout as Layout,
    )
    from armillary.models.registry import (
        plan_for as plan_for,
        resolve as resolve,
    )
    from armillary.parallel.load import (
        load as load,
    )
    from armillary.parallel.parallelize import (
        parallelize as parallelize,
    )
    from armillary.parallel.save import (
        save as save,
    )
    from armillary.plan.context import (
        ContextInput as ContextInput,
        ContextOutput as ContextOutput,
    )
    from armillary.plan.plan import (
        ParallelPlan as ParallelPlan,
    )
    from armillary.plan.resolve import (
        ResolvedPlan as ResolvedPlan,
    )
    from armillary.plan.skeleton import (
        Skeleton as Skeleton,
    )
    from armillary.plan.styles import (
        Colwise as Colwise,
        NormSplit as NormSplit,
        Optional as Optional,
        PackedColwise as PackedColwise,
        PackedRowwise as PackedRowwise,
        Rowwise as Rowwise,
        VocabSplit as VocabSplit,
    )
    from armillary.proof.report import (
        VerifyReport as VerifyReport,
    )
    from armillary.proof.verify import (
        verify as verify,
    )
    from armillary.residency import (
        Residency as Residency,
    )

_HOME = {
    "ArmillaryError": "armillary.errors",
    "CheckpointError": "armillary.errors",
    "Colwise": "armillary.plan.styles",
    "ContextInput": "armillary.plan.context",
    "ContextOutput": "armillary.plan.context",
    "EngineError": "armillary.errors",
    "GenerationRequest": "armillary.engine.request",
    "GenerationResult": "armillary.engine.generate",
    "Layout": "armillary.layout",
    "LayoutError": "armillary.errors",
    "NormSplit": "armillary.plan.styles",
    "Optional": "armillary.plan.styles",
    "PackedColwise": "armillary.plan.styles",
    "PackedRowwise": "armillary.plan.styles",
    "ParallelPlan": "armillary.plan.plan",
    "PlanError": "armillary.errors",
    "RequestError": "armillary.errors",
    "Residency": "armillary.residency",
    "ResolvedPlan": "armillary.plan.resolve",
    "Rowwise": "armillary.plan.styles",
    "Skeleton": "armillary.plan.skeleton",
    "VerifyReport": "armillary.proof.report",
    "VocabSplit": "armillary.plan.styles",
    "generate": "armillary.engine.generate",
    "load": "armillary.parallel.load",
    "parallelize": "armillary.parallel.parallelize",
    "plan_for": "armillary.models.registry",
    "resolve": "armillary.models.registry",
    "save": "armillary.parallel.save",
    "verify": "armillary.proof.verify",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'armillary' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
