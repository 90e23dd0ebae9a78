"""Every parameter of a layer belongs to one pathway; which of them leave follows from the residency."""

import pytest

from armillary.models.cosmos3.pathways import EMBEDDING, blocks_of, moved
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config
from armillary.models.registry import skeleton_for
from armillary.residency import Residency

GENERATION = ("_moe_gen", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_")


def names_of(variant: str) -> list[str]:
    return list(skeleton_for("Cosmos3OmniTransformer", tiny_config(VARIANTS[variant])).parameters)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_of_a_layer_belongs_to_exactly_one_pathway(variant: str) -> None:
    names = names_of(variant)
    understanding, generation = (blocks_of(names, which) for which in ("understanding", "generation"))
    layers = sorted(name for name in names if name.startswith("layers."))
    assert sorted(n for blocks in (understanding, generation) for b in blocks.values() for n in b) == layers
    assert all(any(part in n for part in GENERATION) for block in generation.values() for n in block)
    assert not any(part in n for part in GENERATION for block in understanding.values() for n in block)
    assert sorted(understanding) == sorted(generation) == list(range(VARIANTS[variant].layers))


def test_the_extra_key_norm_belongs_to_the_prompt() -> None:
    block = blocks_of(names_of("relu2"), "understanding")[0]
    assert "layers.0.self_attn.k_norm_und_for_gen.weight" in block


def test_eviction_takes_the_understanding_layers_and_the_embedding_and_nothing_else() -> None:
    names = names_of("silu-bias")
    away = moved(names, Residency(evict="disk"))
    understanding = {n for block in blocks_of(names, "understanding").values() for n in block}
    assert set(away) == understanding | {EMBEDDING}
    assert set(away.values()) == {"disk"}


def test_offload_takes_both_pathways_of_the_layers_that_are_not_resident() -> None:
    away = moved(names_of("silu"), Residency(offload="host", resident_layers=3))
    assert {name.split(".")[1] for name in away} == {"3"}
    assert any("mlp_moe_gen" in name for name in away)
    assert any(".mlp." in name for name in away)


def test_eviction_counts_more_than_a_resident_layer_and_says_where() -> None:
    away = moved(names_of("silu"), Residency(offload="host", evict="disk", resident_layers=4))
    assert not any("moe_gen" in name for name in away)
    both = moved(names_of("silu"), Residency(offload="host", evict="disk"))
    assert both["layers.0.mlp.up_proj.weight"] == "disk"
    assert both["layers.0.mlp_moe_gen.up_proj.weight"] == "host"


def test_nothing_moves_by_default() -> None:
    assert moved(names_of("silu"), Residency()) == {}
