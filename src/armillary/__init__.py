"""Armillary: large diffusion and omni transformers on several devices from one declarative plan.

The public names are the keys of `_HOME`; each is imported when it is first used, so that
`import armillary` costs neither torch nor diffusers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from armillary.errors import (
        ArmillaryError as ArmillaryError,
    )
    from armillary.errors import (
        CheckpointError as CheckpointError,
    )
    from armillary.errors import (
        EngineError as EngineError,
    )
    from armillary.errors import (
        LayoutError as LayoutError,
    )
    from armillary.errors import (
        PlanError as PlanError,
    )
    from armillary.errors import (
        RequestError as RequestError,
    )
    from armillary.layout import Layout as Layout

__version__ = "0.1.0"

_HOME = {
    "ArmillaryError": "armillary.errors",
    "CheckpointError": "armillary.errors",
    "EngineError": "armillary.errors",
    "Layout": "armillary.layout",
    "LayoutError": "armillary.errors",
    "PlanError": "armillary.errors",
    "RequestError": "armillary.errors",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'armillary' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
