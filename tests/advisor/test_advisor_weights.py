"""The advisor's weight bytes are those that `load` puts on a rank, for random configs, layouts and places."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from armillary.advisor.model import find_model
from armillary.advisor.option import RESIDENCIES
from armillary.advisor.rank import RankModel
from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.collectives import Group
from armillary.parallel.load import load
from armillary.parallel.mesh import Mesh

DRAWS = 50


def random_options(draw: random.Random) -> TinyOptions:
    return TinyOptions(
        variant=draw.choice(["silu", "relu2"]),
        layers=draw.randint(1, 3),
        hidden=draw.choice([16, 24, 32]),
        heads=8,
        kv_heads=draw.choice([1, 2, 4, 8]),
        head_dim=draw.choice([6, 8]),
        intermediate=draw.choice([16, 48, 64]),
        vocab=320 + draw.randint(0, 9),
        bias=draw.random() < 0.5,
        sound=draw.random() < 0.5,
        action=draw.random() < 0.5,
        dtype=draw.choice(["float32", "bfloat16"]),
    )


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    folder, draw = tmp_path_factory.mktemp("checkpoints"), random.Random(1)
    for number in range(6):
        write_tiny(folder / str(number), random_options(draw))
    return {number: folder / str(number) for number in range(6)}


def first_rank(layout: Layout) -> Mesh:
    """The mesh as the first rank of `layout` sees it, without the others: a load asks them nothing."""
    groups = {axis: Group(axis, degree) for axis, degree in layout.degrees.items()}
    return Mesh(layout, dict.fromkeys(Layout.AXES, 0), groups, Group("world"))


def held(model: torch.nn.Module) -> int:
    """Bytes of the parameters that are there; one that lives elsewhere is one value, spread out."""
    return sum(p.nbytes for p in model.parameters() if p.untyped_storage().nbytes() >= p.nbytes)


@pytest.mark.parametrize("number", range(DRAWS))
def test_weight_bytes_are_those_of_a_load(number: int, checkpoints: Mapping[int, Path]) -> None:
    draw = random.Random(100 + number)
    folder = checkpoints[number % len(checkpoints)]
    layout = Layout(tp=draw.choice([1, 2, 4, 8]), cfg=draw.choice([1, 2]), gather=draw.choice([1, 3]))
    dtype = draw.choice([None, "float32", "bfloat16"])
    residency = RESIDENCIES[draw.choice([*RESIDENCIES])]
    found = find_model(str(folder), dtype)
    try:
        told = RankModel.of(found, layout).weights(residency, leave_out=False)
    except LayoutError:
        return  # `load` refuses it by the same rule
    loaded = load(
        folder,
        subfolder="transformer",
        layout=layout,
        dtype=getattr(torch, dtype) if dtype else None,
        residency=residency,
        mesh=first_rank(layout),
        progress=False,
    )
    assert told.device == held(loaded)


def test_what_no_generation_calls_is_told_apart(checkpoints: Mapping[int, Path]) -> None:
    rank = RankModel.of(find_model(str(checkpoints[0])), Layout())
    whole = rank.weights(RESIDENCIES["device"], leave_out=False)
    needed = rank.weights(RESIDENCIES["device"], leave_out=True)
    assert whole.device - needed.device == needed.left_out == rank.nbytes("lm_head.weight")


def test_evicted_and_offloaded_bytes_are_on_the_host(checkpoints: Mapping[int, Path]) -> None:
    rank = RankModel.of(find_model(str(checkpoints[0])), Layout())
    everything = rank.weights(RESIDENCIES["device"], leave_out=False).device
    for name in ("evict", "offload", "offload+evict"):
        weights = rank.weights(RESIDENCIES[name], leave_out=False)
        assert weights.device + weights.host == everything
        assert weights.host > 0
