"""Keys walked down a tree of module paths, and the names told when one leads nowhere."""

from typing import Any

import pytest

from armillary.plan.explain import (
    Match,
    did_you_mean,
    match_key,
    mended,
    near,
    one_slip,
    pattern_of,
    unmatched,
    wildcard_problem,
)

BLOCK: dict[str, Any] = {"attn": {"to_q": {}, "to_k": {}, "to_out": {"0": {}}}, "mlp": {"up": {}}}
TREE: dict[str, Any] = {"embed": {}, "blocks": {"0": BLOCK, "1": BLOCK | {"gate": {}}}, "head": {}}


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("embed", Match(("embed",))),
        ("blocks.*.mlp.up", Match(("blocks.0.mlp.up", "blocks.1.mlp.up"))),
        ("blocks.1.mlp.up", Match(("blocks.1.mlp.up",))),
        ("blocks.*.attn.to_out.0", Match(("blocks.0.attn.to_out.0", "blocks.1.attn.to_out.0"))),
        ("blocks.*.attn.to_out.*", Match(("blocks.0.attn.to_out.0", "blocks.1.attn.to_out.0"))),
        ("blocks.*.gate", Match(("blocks.1.gate",), absent=1)),
        ("blocks.*.norm", Match((), absent=2)),
        ("heads", Match((), absent=1)),
    ],
)
def test_a_key_finds_modules_and_counts_the_blocks_without(key: str, match: Match) -> None:
    assert match_key(key, TREE) == match


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("*.mlp.up", "it: the model itself is not a list of blocks; name its parts: blocks, embed or head"),
        (
            "blocks.*.attn.*",
            "it: blocks.0.attn is not a list of blocks; name its parts: to_k, to_out or to_q",
        ),
        ("head.*", "it: head is not a list of blocks; name the layer itself"),
    ],
)
def test_a_wildcard_stands_for_the_blocks_of_a_list(key: str, line: str) -> None:
    assert str(wildcard_problem("it", key, TREE)) == line


def test_a_wildcard_over_blocks_or_over_nothing_is_no_such_problem() -> None:
    assert wildcard_problem("it", "blocks.*.attn.to_out.*", TREE) is None
    assert wildcard_problem("it", "layers.*.up", TREE) is None


@pytest.mark.parametrize(
    ("key", "where", "meant"),
    [
        ("blocks.*.attn.to_g", "blocks.*.attn exists, 'to_g' in it does not", ["attn.to_k", "attn.to_q"]),
        ("blocks.*.atn.to_out.0", "blocks.* exists, 'atn' in it does not", ["attn.to_out.0"]),
        ("bloks.*.mlp.up", "no part of it exists", ["mlp.up"]),
        ("blocks.mlp.up", "blocks exists, 'mlp' in it does not", ["mlp.up"]),
        ("mlp.up", "no part of it exists", ["mlp.up"]),
        ("blocks.*.mlp.to_q", "blocks.*.mlp exists, 'to_q' in it does not", ["attn.to_q"]),
        ("blocks.*.mlp.up.proj", "blocks.*.mlp.up exists, 'proj' in it does not", ["mlp.up"]),
        ("xyz", "no part of it exists", []),
    ],
)
def test_a_key_that_matches_nothing_is_told_how_far_it_leads_and_what_is_near(
    key: str, where: str, meant: list[str]
) -> None:
    problem = unmatched("it", key, TREE, "Toy")
    assert problem.message == f"it matches nothing in Toy: {where}"
    names = problem.fix.removeprefix("did you mean ").split("?")[0] if meant else ""
    assert [name for name in meant if f"blocks.*.{name}" not in names] == []
    assert problem.fix.endswith("rap the entry in Optional(...) if some checkpoints lack the module")


def test_a_slip_is_told_alone() -> None:
    assert (
        "did you mean blocks.*.attn.to_out.0? " in unmatched("it", "blocks.*.atn.to_out.0", TREE, "Toy").fix
    )


def test_a_key_is_mended_in_its_first_wrong_segment() -> None:
    assert mended("block.*.mlp.up", TREE) == ["blocks.*.mlp.up"]
    assert mended("block.*.mlp.upper", TREE) == ["blocks"]


@pytest.mark.parametrize(
    "wrong", ["gate_projj", "gae_proj", "gabe_proj", "gtae_proj", "xgate_proj", "gate_pro"]
)
def test_one_slip_is_one_letter_added_lost_changed_or_two_swapped(wrong: str) -> None:
    assert one_slip(wrong, "gate_proj")
    assert one_slip("gate_proj", wrong)


@pytest.mark.parametrize("other", ["gate_proj", "gate", "up_proj", "gtea_proj", "gate_proj1", "etag_proj"])
def test_more_or_less_than_a_letter_is_no_slip(other: str) -> None:
    assert not one_slip(other, "gate_proj")


def test_numbered_layers_are_no_slips_of_each_other() -> None:
    assert not one_slip("fc1", "fc2")
    assert set(near("fc3", ["fc1", "fc2"])) == {"fc1", "fc2"}


def test_where_a_slip_explains_it_other_names_are_not_told() -> None:
    assert near("to_qq", ["to_q", "to_k", "to_out"]) == ["to_q"]
    assert set(near("to_x", ["to_q", "to_k", "to_out"])) == {"to_q", "to_k"}


def test_without_near_names_nothing_is_suggested() -> None:
    assert did_you_mean(near("xyz", ["to_q"])) == ""


def test_block_numbers_are_one_pattern() -> None:
    assert pattern_of("blocks.17.attn.to_q") == "blocks.*.attn.to_q"
