"""Three roads to a skeleton of Cosmos 3 agree: its config alone, a model on meta, a checkpoint's headers."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from armillary import Skeleton
from armillary.models.cosmos3 import DEFAULTS, FP32_MODULES
from armillary.models.cosmos3.tiny import VARIANTS, tiny_config
from armillary.models.cosmos3.tiny.parts import write_transformer
from armillary.models.described import describe
from armillary.models.registry import skeleton_for, skeleton_of

NAME = "Cosmos3OmniTransformer"


def _of_config(config: Mapping[str, Any]) -> Skeleton:
    return skeleton_for(NAME, config, dtype="bfloat16")


def _of_meta_model(config: Mapping[str, Any]) -> Skeleton:
    with torch.device("meta"):
        model = Cosmos3OmniTransformer(**config).to(torch.bfloat16)
    model.time_embedder.to(torch.float32)
    return skeleton_of(model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_config_says_what_the_model_has(variant: str) -> None:
    config = tiny_config(VARIANTS[variant])
    written, built = _of_config(config), _of_meta_model(config)
    assert list(written.parameters.items()) == list(built.parameters.items())
    assert written.heads == built.heads
    assert written.blocks == built.blocks == {}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_config_says_what_the_headers_hold(variant: str, tmp_path: Path) -> None:
    config = tiny_config(VARIANTS[variant])
    write_transformer(tmp_path, config, seed=0, dtype="bfloat16", files=2)
    found, written = describe(tmp_path), _of_config(config)
    assert list(found.skeleton.parameters.items()) == list(written.parameters.items())
    assert found.skeleton.heads == written.heads
    stored = {name: (entry.shape, entry.nbytes) for name, entry in found.index.tensors.items()}
    assert stored == {name: (p.shape, p.nbytes) for name, p in written.parameters.items()}


def test_the_variants_do_not_all_have_the_same_parameters() -> None:
    names = {frozenset(_of_config(tiny_config(options)).parameters) for options in VARIANTS.values()}
    assert len(names) == len(VARIANTS) - 1  # "action" is "no-sound" by another name


def test_what_a_config_leaves_out_is_what_the_class_assumes() -> None:
    signature = inspect.signature(Cosmos3OmniTransformer.__init__).parameters
    assert {name: signature[name].default for name in DEFAULTS} == DEFAULTS
    assert tuple(Cosmos3OmniTransformer._keep_in_fp32_modules) == FP32_MODULES


def test_an_empty_config_is_that_of_the_class() -> None:
    assert list(_of_config({}).parameters.items()) == list(_of_meta_model({}).parameters.items())
