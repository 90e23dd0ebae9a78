"""What a family module offers, and what its attention modules have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from armillary.errors import Problem
from armillary.models.cost import Cost, Size
from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import Count, HeadGroup, Role
from armillary.residency import Elsewhere, Residency


class Family(Protocol):
    """The names of a family module; each file under `models/` has them, those of the last group where needed.

    Functions take complete configs: `DEFAULTS` where a checkpoint's own is silent.
    """

    PLAN: ParallelPlan
    DEFAULTS: Mapping[str, Any]
    """What the class assumes where a config is silent, of the settings that are read here."""
    FP32_MODULES: tuple[str, ...]
    """Kept in float32 whatever the model's dtype: the class's `_keep_in_fp32_modules`."""
    REPLICATED: Mapping[str, str]
    """Linear layers inside blocks that stay whole, and why: plan key to reason."""
    CONTEXT: bool
    """Whether `moved` and `reuse_prompts` are there: prompts computed once, context axes, residency."""
    TINY: Mapping[str, Mapping[str, Any]]
    """Small configs by name, one for each way in which a config changes what layers there are."""

    def heads(self, config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
        """Head facts of a config."""
        ...

    def cost(self, config: Mapping[str, Any], size: Size) -> Cost:
        """What one forward computes, beside the weights."""
        ...

    def inputs(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of one small forward, the same at every call; float32 noise. Imports torch.

        Timesteps and guidance are numbers that bfloat16 holds, also where the class multiplies them by 1000:
        rounding one moves every angle of its embedding, which hides all that a proof in bfloat16 looks for.
        """
        ...

    def fused(self, config: Mapping[str, Any]) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
        """Where the parts of fused layers follow from the config: plan key to dimension to sizes."""
        ...

    def parameters(self, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(name, shape, kind) of every parameter, where a family writes them down."""
        ...

    def config_problems(self, config: Mapping[str, Any]) -> Iterable[Problem]:
        """What no model of the family can have; beside `parameters`."""
        ...

    IGNORED: tuple[str, ...]
    """Patterns of stored tensors that the class passes over: its `_keys_to_ignore_on_load_unexpected`."""
    KINDS: Mapping[str, str]
    """Plan key to kind, of modules whose kind their names and shapes do not tell."""

    def cut(self, config: Mapping[str, Any], layers: int) -> Mapping[str, Any]:
        """The settings that list blocks one by one, for a model of the first `layers` blocks of each list."""
        ...

    UNUSED_BY_GENERATION: tuple[str, ...]
    """Modules that no generation calls."""

    def moved(self, names: Iterable[str], residency: Residency) -> Mapping[str, Elsewhere]:
        """The parameters that do not live on the device, and where they live."""
        ...

    def reuse_prompts(self, model: Any, mesh: Any, weights: Any) -> Callable[[], None]:
        """Make a loaded model compute each prompt once, the rest over the mesh's context axes, with the
        weights that live elsewhere (None: none do). Returns what takes it back."""
        ...


_OUTPUTS: Mapping[str, tuple[Role | None, ...]] = {
    "to_q": ("query",),
    "to_k": ("key_value",),
    "to_v": ("key_value",),
    "add_q_proj": ("query",),
    "add_k_proj": ("key_value",),
    "add_v_proj": ("key_value",),
    # after `fuse_qkv_projections()`
    "to_qkv": ("query", "key_value", "key_value"),
    "to_kv": ("key_value", "key_value"),
    "to_added_qkv": ("query", "key_value", "key_value"),
    "to_added_kv": ("key_value", "key_value"),
}
_COUNTS: Mapping[str, Count] = {"heads": "query", "inner_dim": "query_features"}
_INPUTS: Mapping[str, tuple[Role | None, ...]] = {"to_out.0": ("query",), "to_add_out": ("query",)}


def attention(
    module: str,
    heads: int,
    head_dim: int,
    *,
    key_value_heads: int | None = None,
    outputs: Mapping[str, tuple[Role | None, ...]] = {},
    inputs: Mapping[str, tuple[Role | None, ...]] = _INPUTS,
    counts: Mapping[str, Count] = _COUNTS,
    arguments: Mapping[str, int] = {},
) -> HeadGroup:
    """The head facts of attention modules whose projections have the names that diffusers gives them.

    Args:
        module: plan key of the attention modules.
        outputs: children beside the usual ones that hold heads, such as norms across them.
        inputs: children that take heads, where they are not the usual ones.
        counts: attributes that count heads; by default `heads` and `inner_dim`.
        arguments: see `HeadGroup.arguments`.
    """
    return HeadGroup(
        module=module,
        query_heads=heads,
        key_value_heads=key_value_heads or heads,
        head_dim=head_dim,
        outputs={**_OUTPUTS, **outputs},
        inputs=inputs,
        counts=counts,
        arguments=arguments,
    )
