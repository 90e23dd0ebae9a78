"""Which key claims which module: required, optional, overlapping and mistaken keys."""

from typing import Any

import pytest
from skeletons import blocks, skeleton

from armillary import Colwise, Layout, Optional, ParallelPlan, PlanError, ResolvedPlan, Rowwise, resolve

DOWN: dict[str, object] = {"blocks.*.mlp.down": "rowwise"}
PAIR: dict[str, object] = {"blocks.*.mlp.up": "colwise", **DOWN}
MODEL = skeleton(
    {"embed.weight": (10, 4)}
    | blocks(3, {"mlp.up.weight": (8, 4), "mlp.down.weight": (4, 8), "norm.weight": (4,)})
    | {"blocks.2.mlp.gate_proj.weight": (8, 4)}
)


def _resolved(plan: dict[str, object], model: Any = MODEL, tp: int = 2) -> ResolvedPlan:
    return resolve(model, Layout(tp=tp), plan=plan)


def _refused(plan: dict[str, object], model: Any = MODEL) -> PlanError:
    with pytest.raises(PlanError) as caught:
        _resolved(plan, model)
    return caught.value


def test_a_key_gives_its_style_to_every_block() -> None:
    resolved = _resolved({"blocks.*.mlp.up": "colwise", "blocks.*.mlp.down": Optional("rowwise")})
    assert resolved.styles == {f"blocks.{i}.mlp.up": Colwise() for i in range(3)} | {
        f"blocks.{i}.mlp.down": Rowwise() for i in range(3)
    }
    assert resolved.skipped_optional == ()


def test_a_required_key_that_matches_nothing_is_refused() -> None:
    assert str(_refused({"blocks.*.mlp.upp": "colwise"} | DOWN)) == (
        "plan key 'blocks.*.mlp.upp' matches nothing in Toy: blocks.*.mlp exists, 'upp' in it does not; "
        "did you mean blocks.*.mlp.up? Otherwise wrap the entry in Optional(...) if some checkpoints lack "
        "the module"
    )


def test_a_required_key_on_some_blocks_only_is_refused() -> None:
    assert str(_refused({"blocks.*.mlp.gate_proj": "colwise"} | PAIR)) == (
        "plan key 'blocks.*.mlp.gate_proj' is on 1 of 3 blocks of Toy; "
        "wrap the entry in Optional(...) if the others may lack it"
    )


def test_an_optional_key_applies_where_present_and_counts_the_other_blocks() -> None:
    resolved = _resolved({"blocks.*.mlp.gate_proj": Optional("colwise")} | PAIR)
    assert [path for path in resolved.styles if "gate" in path] == ["blocks.2.mlp.gate_proj"]
    assert resolved.matches["blocks.*.mlp.gate_proj"].absent == 2
    assert resolved.skipped_optional == ()


def test_an_optional_key_that_matches_nothing_is_skipped_and_listed_once() -> None:
    resolved = _resolved({"blocks.*.to_qkv": Optional("packed_colwise")} | PAIR)
    assert resolved.skipped_optional == ("blocks.*.to_qkv",)
    assert resolved.matches["blocks.*.to_qkv"].absent == 3


def test_a_module_that_is_none_counts_as_absent() -> None:
    import torch

    class Attention(torch.nn.Module):
        def __init__(self, added: bool) -> None:
            super().__init__()
            self.to_q = torch.nn.Linear(4, 4)
            self.to_out = torch.nn.Linear(4, 4)
            self.add_k_proj = torch.nn.Linear(4, 4) if added else None

    model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(map(Attention, [True, False, False]))})
    plan = {
        "blocks.*.to_q": "colwise",
        "blocks.*.add_k_proj": Optional("colwise"),
        "blocks.*.to_out": "rowwise",
    }
    resolved = _resolved(plan, model)
    assert resolved.matches["blocks.*.add_k_proj"].absent == 2
    assert "blocks.0.add_k_proj.weight" in resolved.shards


def test_a_slip_in_an_optional_key_is_refused_where_it_shows() -> None:
    assert str(_refused({"blocks.*.mlp.gtae_proj": Optional("colwise")} | PAIR)) == (
        "plan key 'blocks.*.mlp.gtae_proj' matches nothing, and no key claims blocks.*.mlp.gate_proj; "
        "did you mean blocks.*.mlp.gate_proj? Otherwise remove the entry"
    )


@pytest.mark.parametrize(
    "plan",
    [
        # the near name is claimed, so both may be meant
        {"blocks.*.mlp.gatd_proj": Optional("colwise"), "blocks.*.mlp.gate_proj": Optional("colwise")},
        # another name, not a slip
        {"blocks.*.mlp.gate_project": Optional("colwise")},
        # the style does not go with the near name
        {"blocks.*.nurm": Optional("colwise")},
        {"embet": Optional("colwise")},
    ],
)
def test_an_optional_key_beside_a_name_that_it_cannot_mean_is_only_skipped(plan: dict[str, object]) -> None:
    assert len(_resolved(plan | PAIR).skipped_optional) == 1


def test_a_wildcard_over_something_that_is_no_list_is_refused_even_if_optional() -> None:
    assert _refused({"blocks.*.mlp.*": Optional("colwise")}).problems[0].rule == "wildcard-list"


def test_a_key_that_names_a_block_is_told_the_layers_inside() -> None:
    assert str(_refused({"blocks.*.mlp": "colwise"})) == (
        "plan key 'blocks.*.mlp': blocks.0.mlp has no parameters of its own to split; "
        "name the layers inside it: down or up"
    )


def test_two_keys_that_claim_one_module_are_refused() -> None:
    assert str(_refused(PAIR | {"blocks.1.mlp.up": "rowwise"})) == (
        "plan key 'blocks.*.mlp.up' and plan key 'blocks.1.mlp.up' both claim blocks.1.mlp.up; "
        "keep one of them"
    )


def test_a_message_says_which_file_a_key_comes_from() -> None:
    plan = ParallelPlan(PAIR).merge({"head": "colwise"}, source="plan.json")
    with pytest.raises(PlanError, match=r"plan key 'head' \(plan.json\) matches nothing"):
        resolve(MODEL, Layout(), plan=plan)
