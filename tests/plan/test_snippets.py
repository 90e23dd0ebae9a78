"""The two plans of the public discussion, as they are written there: a gate that some checkpoints lack, and a
projection that is fused on some models."""

from typing import Any

import diffusers
import pytest
import torch

from armillary import (
    Layout,
    Optional,
    PackedColwise,
    ParallelPlan,
    PlanError,
    ResolvedPlan,
    plan_for,
    resolve,
)
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config

GATES = {
    "layers.*.mlp.gate_proj": Optional("colwise"),
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
FLUX: dict[str, Any] = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 16,
    "axes_dims_rope": (2, 2, 4),
    "pooled_projection_dim": 8,
}
FUSED = {
    "transformer_blocks.*.attn.to_qkv": Optional(PackedColwise([1, 1, 1])),
    "transformer_blocks.*.attn.to_added_qkv": Optional(PackedColwise([1, 1, 1])),
    "single_transformer_blocks.*.attn.to_qkv": Optional(PackedColwise([1, 1, 1])),
}


def _cosmos3(variant: str) -> ResolvedPlan:
    with torch.device("meta"):
        model = diffusers.Cosmos3OmniTransformer(**tiny_config(VARIANTS[variant]))
    return resolve(model, Layout(tp=2), plan=ParallelPlan(GATES))


def _flux(*, fused: bool, plan: dict[str, Any]) -> ResolvedPlan:
    with torch.device("meta"):
        model = diffusers.FluxTransformer2DModel(**FLUX)
        if fused:
            model.fuse_qkv_projections()
    return resolve(model, Layout(tp=2), plan=plan)


def test_a_gate_is_split_where_there_is_one_and_skipped_where_there_is_none() -> None:
    silu, relu2 = _cosmos3("silu"), _cosmos3("relu2")
    assert "layers.0.mlp.gate_proj.weight" in silu.shards
    assert silu.skipped_optional == ()
    assert relu2.skipped_optional == ("layers.*.mlp.gate_proj",)
    assert "layers.0.mlp.up_proj.weight" in relu2.shards


@pytest.mark.parametrize("fused", [True, False])
def test_a_projection_is_split_part_by_part_where_it_is_fused(fused: bool) -> None:
    resolved = _flux(fused=fused, plan={**diffusers.FluxTransformer2DModel._tp_plan, **FUSED})
    name = "transformer_blocks.0.attn.to_qkv.weight"
    assert (name in resolved.shards) == fused
    if fused:
        assert resolved.shards[name].ranges(1) == ((16, 32), (48, 64), (80, 96))
    assert [key for key in FUSED if key in resolved.skipped_optional] == ([] if fused else list(FUSED))


def test_a_fused_projection_that_the_plan_forgets_is_refused() -> None:
    with pytest.raises(PlanError, match=r"transformer_blocks\.\*\.attn has to_q, .* and to_qkv"):
        _flux(fused=True, plan=diffusers.FluxTransformer2DModel._tp_plan)


def test_a_plain_style_on_the_fused_projection_is_refused() -> None:
    plan = {**plan_for("FluxTransformer2DModel").to_json(), "transformer_blocks.*.attn.to_qkv": "colwise"}
    with pytest.raises(PlanError, match=r"to_qkv .*fused"):
        _flux(fused=True, plan=plan)
