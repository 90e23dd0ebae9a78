"""The skeleton: a model without weights. Names, kinds, shapes, dtypes and head facts; pure data.

It is made from a live or meta model (`Skeleton.of_model`), from a config with the family's own
description, or from a checkpoint's tensor headers; a test holds that the three agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from math import prod
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["query", "key_value"]
"""The heads that the outputs (or inputs) of a projection are counted in; `None` beside it: plain features."""
Count: TypeAlias = Literal[
    "query", "key_value", "queries_per_key_value", "query_features", "key_value_features"
]


@dataclass(frozen=True)
class Parameter:
    """One entry of a state dict.

    `shape` is the full (global) shape, `dtype` torch's name without prefix ("float32"), `kind` the
    kind of the module that owns it: "linear", "embedding", "norm" or "other".
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    kind: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter."""
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class HeadGroup:
    """The attention modules that share one set of head counts, and what their projections hold.

    `outputs` and `inputs` map a child of the attention module to what its outputs (inputs) are counted
    in, one role for each fused block: a plain query projection has `("query",)` as outputs, a fused QKV
    `("query", "key_value", "key_value")`; an output projection has `("query",)` as inputs.
    """

    module: str
    """Path pattern of the attention modules, e.g. "layers.*.self_attn"."""
    query_heads: int
    key_value_heads: int
    head_dim: int
    outputs: Mapping[str, tuple[Role | None, ...]]
    inputs: Mapping[str, tuple[Role | None, ...]]
    counts: Mapping[str, Count] = field(default_factory=dict)
    """Attribute of the module that holds a count -> what it counts."""
    arguments: Mapping[str, int] = field(default_factory=dict)
    """Argument of the module's forward that holds something for every head (rotary angles) -> the dimension
    along which the heads lie; a rank takes those of its own."""

    @property
    def projections(self) -> tuple[str, ...]:
        """The children that hold heads, as outputs or as inputs."""
        return (*self.outputs, *self.inputs)

    def heads(self, role: Role) -> int:
        """Full (global) number of heads of a role."""
        return self.query_heads if role == "query" else self.key_value_heads


@dataclass(frozen=True)
class Skeleton:
    """Everything about a model that can be known without its weights."""

    model_class: str
    config: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    heads: tuple[HeadGroup, ...] = ()
    blocks: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    """Fused blocks that modules declare themselves (`_tp_packed_*_blocks`): path to dimension to sizes."""
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Every module of a model, those without parameters too -> the arguments of its forward, "**" where it
    takes any. Empty where headers or a config are all that is known."""
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False, repr=False)
    """Modules that count their heads, of a live model that no family describes -> attribute to number."""
    declared: Any = field(default=None, compare=False, repr=False)
    """The `ParallelPlan` that the class itself carries; None without one, or where it is not at hand."""

    @classmethod
    def of_model(cls, model: Any, heads: Iterable[HeadGroup] = ()) -> Skeleton:
        """From a live or meta model (a torch `nn.Module`); only names, shapes and dtypes are read."""
        modules = dict(model.named_modules())
        parameters = {
            name: Parameter(
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                itemsize=tensor.dtype.itemsize,
                kind=_kind_of(modules[_owner(name)]),
            )
            for name, tensor in model.state_dict(keep_vars=True).items()
        }
        return cls(
            model_class=type(model).__name__,
            config=_config_of(model),
            parameters=parameters,
            heads=tuple(heads),
            blocks=_declared_blocks(modules),
            arguments=_arguments(modules),
        )

    def with_dtypes(self, dtypes: Mapping[str, tuple[str, int]]) -> Skeleton:
        """The same skeleton with other dtypes: parameter name to (torch name, item size)."""
        changed = {
            name: replace(p, dtype=dtypes[name][0], itemsize=dtypes[name][1]) if name in dtypes else p
            for name, p in self.parameters.items()
        }
        return replace(self, parameters=changed)

    @cached_property
    def modules(self) -> Mapping[str, Mapping[str, Parameter]]:
        """Modules that own parameters themselves: path to {"weight": ..., "bias": ...}."""
        found: dict[str, dict[str, Parameter]] = {}
        for name, parameter in self.parameters.items():
            found.setdefault(_owner(name), {})[name.rpartition(".")[2]] = parameter
        return found

    @cached_property
    def tree(self) -> Mapping[str, Any]:
        """Module paths as nested mappings, so that a plan's keys can be walked segment by segment."""
        return tree_of(self.modules)

    @cached_property
    def whole_tree(self) -> Mapping[str, Any]:
        """The same with the modules that have no parameters, as far as they are known."""
        return tree_of([*self.modules, *self.arguments])

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters.values())


def tree_of(paths: Iterable[str]) -> dict[str, Any]:
    """Module paths as nested mappings."""
    root: dict[str, Any] = {}
    for path in paths:
        node = root
        for segment in filter(None, path.split(".")):
            node = node.setdefault(segment, {})
    return root


def _arguments(modules: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names of the arguments of every module's forward; modules of one class share them."""
    found: dict[type, tuple[str, ...]] = {}
    for module in modules.values():
        if type(module) not in found:
            parameters = list(signature(type(module).forward).parameters.values())[1:]
            found[type(module)] = tuple("**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters)
    return {path: found[type(module)] for path, module in modules.items()}


def _owner(parameter_name: str) -> str:
    return parameter_name.rpartition(".")[0]


def _kind_of(module: Any) -> str:
    """Kind by the torch class it is or derives from; told by name, so that torch is not imported here.

    Libraries write norms of their own, so a norm is what is called one.
    """
    bases = type(module).__mro__
    names = {base.__name__ for base in bases if base.__module__.startswith("torch.nn")}
    if any(base.__name__.endswith("Norm") for base in bases):
        return "norm"
    return "linear" if "Linear" in names else "embedding" if "Embedding" in names else "other"


def _declared_blocks(modules: Mapping[str, Any]) -> dict[str, Mapping[int, tuple[int, ...]]]:
    """What diffusers' models note on their fused layers: block sizes of the outputs (dim 0) or inputs (1)."""
    declared: dict[str, Mapping[int, tuple[int, ...]]] = {}
    for path, module in modules.items():
        noted = (getattr(module, f"_tp_packed_{side}_blocks", None) for side in ("col", "row"))
        if found := {dim: tuple(blocks) for dim, blocks in enumerate(noted) if blocks}:
            declared[path] = found
    return declared


def _config_of(model: Any) -> dict[str, Any]:
    """The settings of a model: diffusers' config is a mapping, transformers' an object, others have none."""
    config = getattr(model, "config", {})
    settings = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return {key: value for key, value in settings.items() if not key.startswith("_")}
