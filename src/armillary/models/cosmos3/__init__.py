"""NVIDIA Cosmos 3: one transformer with an understanding and a generation pathway in every layer."""

from armillary.models.cosmos3.plan import PLAN, heads
from armillary.models.cosmos3.skeleton import DEFAULTS, FP32_MODULES, parameters

__all__ = ["DEFAULTS", "FP32_MODULES", "PLAN", "heads", "parameters"]
