"""Every registered family as small models: class, variant, config, model and the inputs of a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from armillary.models.family import Family
from armillary.models.registry import complete, families


@dataclass(frozen=True)
class TinyCase:
    """One config of one class; `model` and `inputs` import torch and diffusers."""

    model_class: str
    variant: str
    config: Mapping[str, Any]
    family: Family

    @property
    def label(self) -> str:
        """For messages and test names."""
        return f"{self.model_class}-{self.variant}"

    def model(self, seed: int = 0) -> Any:
        """The float32 model in evaluation mode, with weights under which a fault shows; always the same."""
        from armillary.models.meta import build
        from armillary.models.noise import fill

        model = build(self.model_class, self.config).eval()
        fill(model, seed)
        return model

    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of one forward, `return_dict=False` among them; always the same."""
        return {**self.family.inputs(complete(self.family, self.config)), "return_dict": False}


def tiny_cases() -> Iterator[TinyCase]:
    """The cases of all families, in the order of their classes."""
    for model_class, family in families().items():
        for variant, config in family.TINY.items():
            yield TinyCase(model_class, variant, config, family)
