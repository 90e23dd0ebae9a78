"""What an ordinary model can do and a sharded one cannot: refused on the instance, with what to do instead.

The library's methods know nothing of shards, of weights that live elsewhere and of prompts that are computed
once, and would save, move or change what is not there. Each guard asks the model what was done to it when it
is called, so that it goes on being right when weights move again. A model of one rank with all of its weights
in place is left as it is.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from armillary.errors import PlanError, Problem
from armillary.parallel.degrees import runs_context
from armillary.plan.explain import pattern_of

if TYPE_CHECKING:
    from armillary.parallel.tensor import Sharding
    from armillary.plan.resolve import ResolvedPlan

logger = logging.getLogger("armillary")

_BEFORE = "do it on the whole model, armillary.save that, and load the result with its layout"
REFUSED = {
    "fuse_qkv_projections": (
        "its projections would be joined shard by shard, not head by head",
        "call it before armillary.parallelize: plans cover the fused layers",
    ),
    "fuse_projections": (
        "its projections would be joined shard by shard, not head by head",
        "call fuse_qkv_projections() before armillary.parallelize: plans cover the fused layers",
    ),
    "load_lora_adapter": ("no rule splits the adapter's layers", f"fuse the adapter first: {_BEFORE}"),
    "add_adapter": ("no rule splits the adapter's layers", f"fuse the adapter first: {_BEFORE}"),
    "save_pretrained": (
        "this rank holds its own part only, and would write that",
        "call armillary.save(model, folder) on every rank",
    ),
    "dequantize": ("its layers are not those that were split", _BEFORE),
    "enable_group_offload": (
        "it moves weights that are shards, or that are not here",
        "pass residency=Residency(offload=...) to armillary.load or parallelize",
    ),
    "enable_layerwise_casting": (
        "it casts weights that stand for those that live elsewhere",
        "give armillary.load the dtype",
    ),
    "enable_parallelism": ("it would be split a second time", "give armillary.load the layout that you want"),
    "enable_cache": (
        "it decides from this rank's own rows, or sees no blocks, and ranks would part",
        "use it with tp or cfg alone, without prefill and with all weights in place",
    ),
}
"""Method of a model or of a module in it -> why its result would be wrong, and what to do instead."""
_ADAPTER = (
    "its layers stay whole, and would find the heads of this rank alone",
    "use cfg, which leaves the model whole",
)
REFUSED |= dict.fromkeys(("_load_ip_adapter_weights", "set_attn_processor", "set_processor"), _ADAPTER)
_CACHING_HOOKS = re.compile(
    "(faster|mag|sea|text_kv)_cache|fbc_|pyramid_attention_broadcast|taylorseer_cache"
)
"""How diffusers begins the names of the hooks of `enable_cache`."""
_OFFLOADING_HOOKS = ("group_offloading", "lazy_prefetch_group_offloading")
"""What diffusers calls the hooks of `apply_group_offloading`."""


def guard(model: nn.Module, sharding: Sharding) -> None:
    """Put the guards on a model, once; an ordinary one gets none."""
    if not _is_changed(sharding) or "_armillary_guarded" in vars(model):
        return
    vars(model)["_armillary_guarded"] = True
    for module in model.modules():
        for method in REFUSED:
            if callable(getattr(module, method, None)):
                setattr(module, method, partial(_refuse_method, model, module, method))
    model._apply = partial(_move, model)  # type: ignore[method-assign]
    _gate_hooks(model)


def whole_processors(model: nn.Module, split: Collection[str]) -> Iterator[Problem]:
    """Attention processors with layers (IP adapters) that stay whole where parameters `split` are not."""
    for path, module in model.named_modules():
        processor = getattr(module, "processor", None)
        if not _has_layers(processor):
            continue
        inside = [name for name in split if name.startswith(f"{path}.")]
        if inside and not any(name.startswith(f"{path}.processor.") for name in inside):
            what = f"{pattern_of(path)} has a {type(processor).__name__}: {_ADAPTER[0]}"
            yield Problem("whole-processor", what, _ADAPTER[1])


def _has_layers(processor: object) -> bool:
    return isinstance(processor, nn.Module) and next(processor.parameters(), None) is not None


def log_skipped(resolved: ResolvedPlan) -> None:
    """Say which optional keys found nothing; for the first rank, once."""
    if resolved.skipped_optional:
        name, keys = resolved.skeleton.model_class, ", ".join(resolved.skipped_optional)
        logger.info("optional plan keys without a module in %s: %s", name, keys)


def refuse_foreign(model: nn.Module) -> None:
    """Raise `PlanError` for a model that something else has changed already: adapters, quantised weights,
    diffusers' or accelerate's offload. A split would take no notice of it."""
    if problems := list(_foreign(model)):
        raise PlanError(problems)


def _foreign(model: nn.Module) -> Iterator[Problem]:
    kinds = {
        "lora": "LoRA layers",
        "hook": "an offload of diffusers or accelerate",
        "cache": "a cache of steps",
    }
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        if hasattr(module, "base_layer"):
            found.setdefault("lora", path)
        hooks = getattr(getattr(module, "_diffusers_hook", None), "hooks", {})
        if hasattr(module, "_hf_hook") or not {*_OFFLOADING_HOOKS}.isdisjoint(hooks):
            found.setdefault("hook", path)
        if any(map(_CACHING_HOOKS.match, hooks)):
            found.setdefault("cache", path)
    fixes = {
        "lora": f"fuse the adapter first: {_BEFORE}",
        "hook": "take it off, and pass residency= instead",
        "cache": "call disable_cache() first; where the layout allows it, enable_cache works afterwards",
    }
    for kind, path in found.items():
        what = f"{path or type(model).__name__} has {kinds[kind]}, which a split would take no notice of"
        yield Problem("foreign-change", what, fixes[kind])
    packed = [n for n, p in model.named_parameters() if type(p.data) is not torch.Tensor or _is_packed(p)]
    if packed or getattr(model, "is_quantized", False):
        name = packed[0] if packed else type(model).__name__
        what = f"{name} has no plain values: it is quantised, or a DTensor"
        yield Problem("plain-values", what, "split the whole model, in float32, bfloat16 or float16")


def _is_packed(parameter: nn.Parameter) -> bool:
    """Integers in place of a matrix."""
    return parameter.dim() > 1 and not (parameter.is_floating_point() or parameter.is_complex())


def _is_changed(sharding: Sharding) -> bool:
    return bool(sharding.resolved.shards) or _runs_otherwise(sharding)


def _runs_otherwise(sharding: Sharding) -> bool:
    """Whether the model's forward is not the library's, over all rows."""
    return bool(runs_context(sharding.mesh.layout) or sharding.prefill or sharding.weights)


def _splits_heads(sharding: Sharding, *processors: Any) -> bool:
    """Whether processors, also by name, have layers that know nothing of the split."""
    given = [p for one in processors for p in (one.values() if isinstance(one, Mapping) else [one])]
    return bool(sharding.resolved.shards) and any(map(_has_layers, given))


_ONLY_WHERE: Mapping[str, Callable[..., bool]] = {
    "enable_layerwise_casting": lambda sharding, *_: bool(sharding.weights),
    "enable_cache": lambda sharding, *_: _runs_otherwise(sharding),
    "_load_ip_adapter_weights": lambda sharding, *_: bool(sharding.resolved.shards),
    "set_attn_processor": _splits_heads,
    "set_processor": _splits_heads,
}
"""What is right on some of the models that are changed -> where, and with what arguments, it is wrong."""


def _sharding(model: nn.Module) -> Sharding:
    found: Sharding = model._armillary_sharding  # type: ignore[assignment]
    return found


def _refuse_method(model: nn.Module, module: nn.Module, method: str, *args: Any, **kwargs: Any) -> Any:
    sharding, wrong = _sharding(model), _ONLY_WHERE.get(method)
    if wrong(sharding, *args, *kwargs.values()) if wrong else _is_changed(sharding):
        raise _refusal(model, method)
    return getattr(type(module), method)(module, *args, **kwargs)


def _refusal(model: nn.Module, method: str) -> PlanError:
    why, instead = REFUSED[method]
    return PlanError(Problem("sharded-model", f"{method} on a {_state(model)}: {why}", instead))


def _state(model: nn.Module) -> str:
    sharding = _sharding(model)
    layout, name = sharding.mesh.layout, type(model).__name__
    if layout.world_size > 1:
        return f"{name} that is split over {layout}"
    return f"{name} with weights elsewhere" if sharding.weights else f"{name} that keeps its prompts"


def _move(
    model: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """`Module._apply`, which is behind `to`, `cuda`, `cpu`, `half` and the like, with what it may not do."""
    here = next((p for p in model.parameters() if not p.is_meta), None)
    if here is not None:
        before = torch.empty(0, dtype=here.dtype, device=here.device)
        after = function(before)
        sharding = _sharding(model)
        if after.device != before.device and (sharding.mesh.layout.world_size > 1 or sharding.weights):
            where = f"from {before.device} to {after.device}"
            what = (
                f"moving a {_state(model)} {where}: every rank has its own device, and its ranks meet there"
            )
            fix = f"pass device={str(after.device)!r} to armillary.load or parallelize"
            raise PlanError(Problem("sharded-model", what, fix))
        if after.dtype != before.dtype and sharding.weights:
            what = f"casting a {_state(model)} to {after.dtype}: what lives elsewhere would stay as it is"
            raise PlanError(Problem("sharded-model", what, f"pass dtype={after.dtype} to armillary.load"))
    return nn.Module._apply(model, function, recurse)  # type: ignore[no-any-return]


def _gate_hooks(model: nn.Module) -> None:
    """Refuse `apply_group_offloading`, `apply_first_block_cache` and their like, which register hooks."""
    if "diffusers" not in sys.modules:
        return
    from diffusers.hooks.hooks import HookRegistry

    class Gate(HookRegistry):
        """diffusers' registry of a module's hooks, closed to those that move weights or skip steps."""

        def register_hook(self, hook: Any, name: str) -> None:
            if name in _OFFLOADING_HOOKS and _is_changed(_sharding(model)):
                raise _refusal(model, "enable_group_offload")
            if _CACHING_HOOKS.match(name) and _runs_otherwise(_sharding(model)):
                raise _refusal(model, "enable_cache")
            super().register_hook(hook, name)

    for module in model.modules():
        if not hasattr(module, "_diffusers_hook"):
            module._diffusers_hook = Gate(module)
