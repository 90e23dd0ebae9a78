"""Configs that no Cosmos 3 can have are told apart from those it can, as the class itself does."""

from typing import Any

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from armillary.models.cosmos3 import DEFAULTS, config_problems
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config

TINY = tiny_config(VARIANTS["silu"])


def _lines(**changed: Any) -> list[str]:
    return [str(problem) for problem in config_problems({**DEFAULTS, **TINY, **changed})]


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_right(options: Any) -> None:
    assert list(config_problems({**DEFAULTS, **tiny_config(options)})) == []


@pytest.mark.parametrize("value", [0, -1, "64", 6.5, None, True])
def test_a_size_is_a_whole_number_from_one_up(value: object) -> None:
    assert _lines(hidden_size=value) == [f"hidden_size={value!r} is no count; use a whole number from 1 up"]


@pytest.mark.parametrize(("switch", "size"), [("action_gen", "action_dim"), ("sound_gen", "sound_dim")])
def test_a_head_has_a_size_where_it_is_switched_on(switch: str, size: str) -> None:
    assert _lines(**{switch: True, size: None}) == [f"{size}=None is no count; use a whole number from 1 up"]
    assert _lines(**{switch: False, size: None}) == []


def test_the_activation_is_one_of_the_two() -> None:
    assert _lines(hidden_act="gelu") == ["hidden_act='gelu' is not known; use silu or relu2"]


def test_key_value_heads_divide_the_query_heads() -> None:
    (line,) = _lines(num_attention_heads=8, num_key_value_heads=3)
    assert line.startswith("num_key_value_heads=3 does not divide num_attention_heads=8")


@pytest.mark.parametrize("changed", [{"hidden_act": "gelu"}, {"action_gen": True, "action_dim": None}])
def test_the_class_refuses_what_is_refused_here(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hidden_act|action_dim"), torch.device("meta"):
        Cosmos3OmniTransformer(**{**TINY, **changed})
