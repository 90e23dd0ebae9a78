"""The tensor plan of `Cosmos3OmniTransformer` (diffusers 0.42.1): both pathways, every config variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from armillary.plan.plan import ParallelPlan
from armillary.plan.skeleton import HeadGroup
from armillary.plan.styles import Colwise, Optional, VocabSplit

_ATTENTION = "layers.*.self_attn"

PLAN = ParallelPlan(
    {
        "embed_tokens": VocabSplit(),
        # understanding pathway
        f"{_ATTENTION}.to_q": "colwise",
        f"{_ATTENTION}.to_k": "colwise",
        f"{_ATTENTION}.to_v": "colwise",
        f"{_ATTENTION}.to_out": "rowwise",
        # ReLU² checkpoints (Edge) have no gate
        "layers.*.mlp.gate_proj": Optional("colwise"),
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
        # generation pathway
        f"{_ATTENTION}.add_q_proj": "colwise",
        f"{_ATTENTION}.add_k_proj": "colwise",
        f"{_ATTENTION}.add_v_proj": "colwise",
        f"{_ATTENTION}.to_add_out": "rowwise",
        "layers.*.mlp_moe_gen.gate_proj": Optional("colwise"),
        "layers.*.mlp_moe_gen.up_proj": "colwise",
        "layers.*.mlp_moe_gen.down_proj": "rowwise",
        # generation never calls it; gathered, so that a caller gets whole logits
        "lm_head": Colwise(gather=True),
    },
    source="armillary.models.cosmos3",
)


def heads(config: Mapping[str, Any]) -> tuple[HeadGroup, ...]:
    """The head counts of a config, and which projections hold them."""
    return (
        HeadGroup(
            module=_ATTENTION,
            query_heads=config["num_attention_heads"],
            key_value_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            outputs={
                "to_q": ("query",),
                "to_k": ("key_value",),
                "to_v": ("key_value",),
                "add_q_proj": ("query",),
                "add_k_proj": ("key_value",),
                "add_v_proj": ("key_value",),
            },
            inputs={"to_out": ("query",), "to_add_out": ("query",)},
            counts={
                "num_attention_heads": "query",
                "num_key_value_heads": "key_value",
                "num_key_value_groups": "queries_per_key_value",
            },
        ),
    )
