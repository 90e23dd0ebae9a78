"""A checkpoint cut to its first blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.checkpoint.header import TensorEntry
from armillary.checkpoint.index import CheckpointIndex
from armillary.errors import CheckpointError
from armillary.models.meta import build, skeleton_on_meta
from armillary.models.noise import fill
from armillary.models.registry import complete, families
from armillary.proof.cut import cut, depths

CONFIG = {"num_layers": 3, "num_single_layers": 2, "patch_layers": 7, "hidden": 3, "flags": True}


def names_of(config: Mapping[str, Any]) -> list[str]:
    double = [f"blocks.{n}.to_q.weight" for n in range(config["num_layers"])]
    single = [f"single.{n}.to_q.weight" for n in range(config["num_single_layers"])]
    return ["embed.weight", *double, *single]


def index_of(config: Mapping[str, Any]) -> CheckpointIndex:
    entries = {
        name: TensorEntry(name=name, dtype="F32", shape=(2, 2), file=Path("x"), offset=0, nbytes=16)
        for name in names_of({**CONFIG, **config})
    }
    return CheckpointIndex(Path("folder"), config, entries)


def test_only_settings_that_count_a_list_of_the_checkpoint_are_depths() -> None:
    assert depths(index_of(CONFIG)) == {"num_layers": 3, "num_single_layers": 2}


def test_every_list_has_at_most_so_many_blocks_and_no_other_tensor_is_read() -> None:
    found = cut(index_of(CONFIG), 2, names_of)
    assert found.config == {**CONFIG, "num_layers": 2}
    assert list(found.tensors) == names_of({"num_layers": 2, "num_single_layers": 2})


@pytest.mark.parametrize(
    ("layers", "config", "word"), [(0, CONFIG, "use 1 or more"), (1, {}, "how many blocks")]
)
def test_what_cannot_be_cut_is_refused(layers: int, config: Mapping[str, Any], word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        cut(index_of(config), layers, names_of)


LISTS = {
    "WanVACETransformer3DModel": ("text-to-video", {"num_layers": 3, "vace_layers": [0, 2]}),
    "HiDreamImageTransformer2DModel": (
        "experts",
        # the second encoder has fewer layers than there are blocks, and its channels are those of the first
        {
            "num_layers": 3,
            "num_single_layers": 3,
            "caption_channels": [10, 10],
            "llama_layers": [0, 1, 2, 3, 4, 4],
        },
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_config_that_lists_its_blocks_is_cut_to_a_model_that_runs(name: str) -> None:
    family, (variant, more) = families()[name], LISTS[name]
    config = {**family.TINY[variant], **more, "_class_name": name}
    parameters = skeleton_on_meta(name, config).parameters
    entries = {
        key: TensorEntry(name=key, dtype="F32", shape=one.shape, file=Path("x"), offset=0, nbytes=4)
        for key, one in parameters.items()
    }
    index = cut(
        CheckpointIndex(Path("folder"), config, entries), 2, lambda c: skeleton_on_meta(name, c).parameters
    )
    model = build(name, index.config)
    fill(model)
    assert {key: tuple(one.shape) for key, one in model.named_parameters()} == {
        key: entry.shape for key, entry in index.tensors.items()
    }
    with torch.no_grad():
        (out,) = model(**family.inputs(complete(family, index.config)), return_dict=False)[:1]
    assert out.isfinite().all()
