"""NVIDIA Cosmos 3: one transformer with an understanding and a generation pathway in every layer."""

from armillary.models.cosmos3.config import DEFAULTS, FP32_MODULES, config_problems
from armillary.models.cosmos3.plan import PLAN, heads
from armillary.models.cosmos3.skeleton import parameters

__all__ = ["DEFAULTS", "FP32_MODULES", "PLAN", "config_problems", "heads", "parameters"]
