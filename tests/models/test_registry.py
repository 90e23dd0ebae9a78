"""From a model, a class or a name to its plan and skeleton, and what the two resolve to."""

from typing import Any

import diffusers
import pytest
import torch
from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs
from torch import nn

from armillary import (
    Colwise,
    Layout,
    LayoutError,
    PackedColwise,
    PackedRowwise,
    ParallelPlan,
    PlanError,
    plan_for,
    resolve,
)
from armillary.errors import CheckpointError
from armillary.models.cosmos3 import PLAN
from armillary.models.registry import known_classes, skeleton_for, skeleton_of

COSMOS3 = "Cosmos3OmniTransformer"
SMALL = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 10}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
FLUX = {"num_layers": 2, "num_single_layers": 2, "joint_attention_dim": 16}
SIZES = {"attention_head_dim": 8, "num_attention_heads": 4}
DIFFUSERS: dict[str, dict[str, Any]] = {
    "FluxTransformer2DModel": SIZES | FLUX | {"axes_dims_rope": (2, 2, 4), "pooled_projection_dim": 8},
    "Flux2Transformer2DModel": SIZES
    | FLUX
    | {"axes_dims_rope": (2, 2, 2, 2), "timestep_guidance_channels": 8},
    "QwenImageTransformer2DModel": SIZES
    | {"num_layers": 2, "axes_dims_rope": (2, 2, 4), "joint_attention_dim": 16},
    "QwenImage21Transformer2DModel": SIZES
    | {"num_layers": 2, "axes_dims_rope": (2, 2, 4), "context_in_dim": 16},
}


def _on_meta(name: str, **config: Any) -> Any:
    with torch.device("meta"):
        return getattr(diffusers, name)(**config)


class Mine(nn.Module):
    """A class that carries its own plan, as diffusers' classes do."""

    _tp_plan = {"up": "colwise", "down": "rowwise"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)


class Stranger(nn.Linear):
    """A class without a plan."""


def test_a_registered_plan_is_found_by_name_class_model_and_subclass() -> None:
    model = _on_meta(COSMOS3, **SMALL, **HEADS)
    assert plan_for(COSMOS3) is plan_for(type(model)) is plan_for(model) is PLAN
    assert plan_for(type("Tuned", (type(model),), {})) is PLAN


def test_a_class_that_carries_a_plan_is_understood_as_it_is() -> None:
    plan = plan_for(Mine)
    assert plan == plan_for(Mine()) == ParallelPlan(Mine._tp_plan)
    assert plan.label("up") == "plan key 'up' (Mine._tp_plan)"


@pytest.mark.parametrize("model", ["Stranger", Stranger, Stranger(2, 2)])
def test_a_class_without_a_plan_is_shown_how_to_write_one(model: object) -> None:
    with pytest.raises(PlanError, match=r"Stranger has no registered plan; \d+ classes have one") as caught:
        plan_for(model)
    assert '{"blocks.*.attn.to_q": "colwise", "blocks.*.attn.to_out.0": "rowwise", ...}' in str(caught.value)


def test_a_plan_is_shown_in_the_terms_of_the_model_that_has_none() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = nn.Linear(4, 8), nn.Linear(8, 4)

    model = nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()])})
    with pytest.raises(
        PlanError, match=r'\{"layers\.\*\.w1": "colwise", "layers\.\*\.w2": "rowwise", \.\.\.\}'
    ):
        resolve(model, Layout(tp=2))
    overrides = {"layers.*.w1": "colwise", "layers.*.w2": "rowwise"}
    assert "layers.0.w1.bias" in resolve(model, Layout(tp=2), overrides=overrides).shards


def test_known_classes_are_those_with_a_plan() -> None:
    assert {COSMOS3, "FluxTransformer2DModel", "WanTransformer3DModel"} < set(known_classes())


@pytest.mark.parametrize("name", DIFFUSERS)
def test_the_plans_of_diffusers_split_what_diffusers_splits(name: str) -> None:
    model = _on_meta(name, **DIFFUSERS[name])
    resolved = resolve(model, Layout(tp=2), plan=ParallelPlan(model._tp_plan))
    theirs = {n: s for n, s in resolve_tp_shard_specs(model, model._tp_plan, 2).items() if s.dim is not None}
    assert set(resolved.shards) == set(theirs)
    for parameter, spec in theirs.items():
        shard = resolved.shards[parameter]
        assert shard.dim == spec.dim
        assert _features(shard.ranges(1)) == _second_half_of_each(spec.block_sizes)


def _features(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [feature for start, stop in ranges for feature in range(start, stop)]


def _second_half_of_each(sizes: list[int]) -> list[int]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [feature for size, end in zip(sizes, ends, strict=True) for feature in range(end - size // 2, end)]


def test_a_config_is_enough_for_a_skeleton() -> None:
    skeleton = skeleton_for(COSMOS3, {**SMALL, **HEADS, "_class_name": COSMOS3}, dtype="bfloat16")
    assert skeleton.parameters["layers.1.self_attn.to_k.weight"].shape == (4, 8)
    assert {p.dtype for name, p in skeleton.parameters.items() if "time_embedder" in name} == {"float32"}
    assert {p.dtype for name, p in skeleton.parameters.items() if "time_embedder" not in name} == {"bfloat16"}
    assert "_class_name" not in skeleton.config


def test_an_unknown_class_has_no_skeleton() -> None:
    with pytest.raises(
        PlanError, match=f"Stranger is not a model class Armillary knows; known classes: .*{COSMOS3}"
    ):
        skeleton_for("Stranger", {})


def test_a_config_that_no_model_can_have_is_refused_with_all_its_faults() -> None:
    with pytest.raises(CheckpointError) as caught:
        skeleton_for(COSMOS3, {"hidden_size": "4096", "head_dim": 0, "hidden_act": "gelu"})
    rules = [problem.rule for problem in caught.value.problems]
    assert rules == ["config-count", "config-count", "config-activation"]


def test_a_model_of_another_family_has_no_heads() -> None:
    assert skeleton_of(Mine()).heads == ()
    assert resolve(Mine(), Layout(tp=4)).heads == {}


def test_a_plan_given_replaces_the_registered_one() -> None:
    skeleton = skeleton_for(COSMOS3, SMALL | HEADS)
    resolved = resolve(skeleton, Layout(tp=2), plan={"proj_in": Colwise(gather=True)})
    assert list(resolved.shards) == ["proj_in.weight", "proj_in.bias"]


def test_config_json_and_overrides_merge_into_the_registered_plan_in_that_order() -> None:
    config = {"parallel_plan": {"lm_head": None, "proj_in": "colwise"}}
    skeleton = skeleton_for(COSMOS3, {**SMALL, **HEADS, **config})
    resolved = resolve(skeleton, Layout(tp=2), overrides={"proj_in": Colwise(gather=True)})
    assert resolved.styles["proj_in"] == Colwise(gather=True)
    assert "lm_head.weight" in resolved.replicated
    assert resolved.plan.sources["proj_in"] == "overrides"


def test_a_plan_given_stands_without_the_one_in_config_json() -> None:
    skeleton = skeleton_for(COSMOS3, {**SMALL, **HEADS, "parallel_plan": {"proj_in": "colwise"}})
    assert resolve(skeleton, Layout(), plan=PLAN).plan == PLAN


def test_faults_of_config_json_and_of_overrides_are_told_together() -> None:
    skeleton = skeleton_for(COSMOS3, {**SMALL, **HEADS, "parallel_plan": ["lm_head"]})
    with pytest.raises(PlanError) as caught:
        resolve(skeleton, Layout(), overrides={"lm_hed": None, "proj_in": "colwize"})
    assert [problem.rule for problem in caught.value.problems] == [
        "plan-form",
        "override-removes",
        "unknown-style",
    ]


def test_one_rank_needs_no_plan_and_several_do() -> None:
    assert resolve(Stranger(2, 2), Layout()).replicated == ("weight", "bias")
    with pytest.raises(PlanError, match="Stranger has no registered plan"):
        resolve(Stranger(2, 2), Layout(tp=2))


def test_any_model_can_be_split_with_a_plan_of_its_own() -> None:
    plan = {"up": PackedColwise([1, 1]), "down": PackedRowwise([1, 1])}
    assert resolve(Mine(), Layout(tp=2), plan=plan).local_shape("down.weight", 1) == (4, 4)
    with pytest.raises(LayoutError, match=r"use tp=1, 2 or 4$"):
        resolve(Mine(), Layout(tp=8), plan=plan)
