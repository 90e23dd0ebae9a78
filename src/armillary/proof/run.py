"""The computation of a case on one rank, with either transformer: a whole generation, or one forward."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from armillary.engine.guidance import own_denoiser
from armillary.engine.pipeline import build_pipeline, pipeline_arguments
from armillary.engine.request import CompleteRequest
from armillary.models.registry import complete, family_of
from armillary.parallel.mesh import Mesh
from armillary.proof.case import Case

Outputs = Mapping[str, torch.Tensor]
"""By name, on the CPU, in the dtype in which they were computed."""

_LATENTS = ("latents", "sound_latents", "action_latents")


def run_case(case: Case, model: nn.Module, mesh: Mesh | None) -> Outputs:
    """What a model computes: on a rank of `mesh` as `generate` does it, else as diffusers alone does."""
    outputs = _forward(case, model) if case.request is None else _generation(case, model, mesh)
    return {name: tensor.detach().cpu() for name, tensor in outputs.items()}


def _generation(case: Case, model: nn.Module, mesh: Mesh | None) -> Outputs:
    """The final latents, before the VAE, whose float32 would hide what is compared."""
    assert case.request is not None, "a forward has no request"
    assert case.pipeline is not None, "a generation has a pipeline"
    request = CompleteRequest.from_json(case.request)
    dtype = _dtype(model)
    others = torch.float32 if dtype == torch.float64 else dtype
    pipeline = build_pipeline(case.pipeline, request, model, others)
    for block in _loops(pipeline._blocks):
        block.set_progress_bar_config(disable=True)  # ours is shown
    steered = own_denoiser(pipeline, None, mesh.groups["cfg"], lambda _: None) if mesh else nullcontext()
    with steered:
        state = pipeline(**pipeline_arguments(request), output_type="latent")
    return {name: found for name in _LATENTS if (found := state.get(name)) is not None}


@torch.no_grad()
def _forward(case: Case, model: nn.Module) -> Outputs:
    """One forward on the inputs that the model's family, or the user, has for it."""
    given = tree_map(partial(_cast, model), inputs_of(case.inputs, model))
    if "return_dict" in inspect.signature(type(model).forward).parameters:
        given["return_dict"] = False
    tensors = [leaf for leaf in tree_leaves(model(**given)) if isinstance(leaf, torch.Tensor)]
    return {f"output.{number}" if number else "output": tensor for number, tensor in enumerate(tensors)}


def inputs_of(function: str | None, model: nn.Module) -> dict[str, Any]:
    """The keyword arguments of a forward: floating-point ones in float32, the same every time."""
    if function is not None:
        module, _, name = function.partition(":")
        made: dict[str, Any] = getattr(importlib.import_module(module), name)(model)
        return made
    family = family_of(model)
    assert family is not None, "a class without a family comes with a function"
    config: Any = model.config
    return family.inputs(complete(family, config))


def _cast(model: nn.Module, value: Any) -> Any:
    """Tensors on the model's device, and of its dtype where they are of floating point."""
    if not isinstance(value, torch.Tensor):
        return value
    device = next(model.parameters()).device
    return value.to(device, _dtype(model)) if value.is_floating_point() else value.to(device)


def _dtype(model: nn.Module) -> torch.dtype:
    """Most parameters' dtype: a model keeps a few small modules in float32."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel()
    return sizes.most_common(1)[0][0]


def _loops(block: Any) -> list[Any]:
    children = [
        child for part in (getattr(block, "sub_blocks", None) or {}).values() for child in _loops(part)
    ]
    return [*children, *([block] if hasattr(block, "set_progress_bar_config") else [])]
