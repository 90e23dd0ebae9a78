"""A skeleton of a live or meta model: what its state dict holds, and nothing of its values."""

from typing import Any

import pytest
import torch
from torch import nn

from armillary import Skeleton
from armillary.plan.skeleton import HeadGroup, Parameter


class Wide(nn.Linear):
    """A library's own kind of linear layer."""


class Linear(nn.Module):
    """Linear by name only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3, 4))


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": Wide(4, 6), "norm": nn.LayerNorm(6)}) for _ in range(2)
        )
        self.conv = nn.Conv2d(1, 2, 3, bias=False)
        self.named = Linear()
        self.absent = None
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("table", torch.ones(9), persistent=False)


TOY = Skeleton.of_model(Toy())


def test_it_has_the_entries_of_the_state_dict_in_their_order() -> None:
    state = Toy().state_dict()
    assert list(TOY.parameters) == list(state)
    assert {name: p.shape for name, p in TOY.parameters.items()} == {
        n: tuple(t.shape) for n, t in state.items()
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("embed.weight", "embedding"),
        ("blocks.1.up.bias", "linear"),
        ("blocks.0.norm.weight", "norm"),
        ("conv.weight", "other"),
        ("named.weight", "other"),
        ("scale", "other"),
        ("steps", "other"),
    ],
)
def test_a_parameter_is_of_the_kind_of_its_module(name: str, kind: str) -> None:
    assert TOY.parameters[name].kind == kind


def test_bytes_follow_the_dtype() -> None:
    assert TOY.parameters["embed.weight"] == Parameter((5, 4), "float32", 4, "embedding")
    assert TOY.parameters["steps"].nbytes == 8
    assert TOY.nbytes == sum(t.numel() * t.itemsize for t in Toy().state_dict().values())


def test_a_meta_model_has_the_same_skeleton() -> None:
    assert Skeleton.of_model(Toy().to("meta")) == TOY


def test_modules_are_those_with_parameters_of_their_own() -> None:
    assert list(TOY.modules) == [
        "",
        "embed",
        "blocks.0.up",
        "blocks.0.norm",
        "blocks.1.up",
        "blocks.1.norm",
        "conv",
        "named",
    ]
    assert list(TOY.modules["blocks.0.up"]) == ["weight", "bias"]


def test_the_tree_nests_the_same_paths() -> None:
    block: dict[str, object] = {"up": {}, "norm": {}}
    assert TOY.tree == {"embed": {}, "blocks": {"0": block, "1": block}, "conv": {}, "named": {}}


def test_other_dtypes_change_nothing_else() -> None:
    half = TOY.with_dtypes({"embed.weight": ("bfloat16", 2), "elsewhere": ("int8", 1)})
    assert half.parameters["embed.weight"] == Parameter((5, 4), "bfloat16", 2, "embedding")
    assert half.nbytes == TOY.nbytes - 5 * 4 * 2
    assert half.with_dtypes({"embed.weight": ("float32", 4)}) == TOY


def test_fused_blocks_that_a_layer_declares_are_kept_by_dimension() -> None:
    model: Any = Toy()
    model.blocks[0]["up"]._tp_packed_col_blocks = [2, 4]
    model.blocks[1]["up"]._tp_packed_row_blocks = [1, 3]
    assert Skeleton.of_model(model).blocks == {"blocks.0.up": {0: (2, 4)}, "blocks.1.up": {1: (1, 3)}}


def test_the_config_of_diffusers_is_read() -> None:
    model: Any = Toy()
    model.config = {"width": 4, "_class_name": "Toy"}
    assert Skeleton.of_model(model).config == {"width": 4}


def test_the_config_of_transformers_is_read() -> None:
    from transformers import PretrainedConfig

    model: Any = Toy()
    model.config = PretrainedConfig(width=4)
    assert Skeleton.of_model(model).config["width"] == 4


def test_a_model_without_a_config_has_an_empty_one() -> None:
    assert TOY.config == {}


def test_a_head_group_counts_what_its_projections_hold() -> None:
    group = HeadGroup(
        "attn", 8, 2, 16, outputs={"qkv": ("query", "key_value", "key_value")}, inputs={"out": ("query",)}
    )
    assert (group.heads("query"), group.heads("key_value")) == (8, 2)
    assert group.projections == ("qkv", "out")
