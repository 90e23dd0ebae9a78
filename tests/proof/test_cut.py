"""A checkpoint cut to its first blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from armillary.checkpoint.header import TensorEntry
from armillary.checkpoint.index import CheckpointIndex
from armillary.errors import CheckpointError
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
