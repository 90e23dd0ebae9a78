"""NVIDIA Cosmos 3: one transformer with an understanding and a generation pathway in every layer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from armillary.models.cosmos3.config import DEFAULTS, FP32_MODULES, config_problems
from armillary.models.cosmos3.cost import cost
from armillary.models.cosmos3.inputs import inputs
from armillary.models.cosmos3.pathways import UNUSED_BY_GENERATION, moved
from armillary.models.cosmos3.plan import PLAN, heads
from armillary.models.cosmos3.skeleton import parameters
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config

__all__ = [
    "CONTEXT",
    "DEFAULTS",
    "FP32_MODULES",
    "PLAN",
    "REPLICATED",
    "TINY",
    "UNUSED_BY_GENERATION",
    "config_problems",
    "cost",
    "heads",
    "inputs",
    "moved",
    "parameters",
    "reuse_prompts",
]

CONTEXT = True
REPLICATED: Mapping[str, str] = {}
TINY = {name: tiny_config(replace(options, layers=2)) for name, options in VARIANTS.items()}


def reuse_prompts(model: Any, mesh: Any, weights: Any) -> Callable[[], None]:
    """See `Family.reuse_prompts`; torch is imported only where it is called."""
    from armillary.models.cosmos3.prefill import Prefill, PromptStore
    from armillary.models.cosmos3.streams import pathways_of
    from armillary.parallel.context import Context

    prefill = Prefill(model, Context.of(mesh.groups), PromptStore(), pathways_of(model, weights))
    prefill.install()
    return prefill.remove
