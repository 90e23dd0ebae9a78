"""A model in memory whose weights move out, before it is split or after, and what cannot be is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.errors import CheckpointError, LayoutError, PlanError
from armillary.layout import Layout
from armillary.models.cosmos3 import UNUSED_BY_GENERATION
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from armillary.parallel.tensor import sharding_of
from armillary.residency import Residency
from packed_forward import Packed
from rank_cases import Told, World, cases_of, run_cases

HOST = Residency(offload="host", evict="host", resident_layers=1)
DISK = Residency(offload="disk", evict="disk")
TP2, TP2_ULYSSES2 = Layout(tp=2), Layout(tp=2, ulysses=2)
PACKS = [Packed(), Packed(ids=[3, 3, 8], timestep=20.0)]


def model_of(folder: Path, **how: Any) -> Any:
    return load(folder / "tiny", subfolder="transformer", progress=False, **how)


def outputs(model: Any) -> list[torch.Tensor]:
    return [tensor for pack in PACKS for tensor in pack.run(model)]


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    write_tiny(folder / "tiny", TinyOptions(layers=3))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[torch.Tensor]:
    return outputs(model_of(folder))


def test_weights_move_to_host_memory_to_disk_and_home_again(folder: Path, expected: Any) -> None:
    model = model_of(folder, prefill=False)
    for home in (HOST, DISK, Residency(offload="host"), Residency()):
        parallelize(model, Layout(), residency=home)
        away = {name for name, p in model.named_parameters() if p.isnan().all()}
        assert bool(away) == home.moves
        assert same_bits(outputs(model), expected)
    assert len(model._forward_pre_hooks) == 0


def test_a_model_that_was_streamed_streams_on_when_it_is_split_again(folder: Path, expected: Any) -> None:
    model = model_of(folder, residency=DISK)
    parallelize(model, Layout(), overrides={"lm_head": None})
    sharding = sharding_of(model)
    assert sharding is not None
    assert sharding.residency == DISK
    assert same_bits(outputs(model), expected)


def test_modules_that_were_left_out_stay_out(folder: Path, expected: Any) -> None:
    model = model_of(folder, leave_out=UNUSED_BY_GENERATION)
    parallelize(model, Layout(), residency=HOST)
    assert model.lm_head is None
    assert same_bits(outputs(model), expected)


def test_disk_needs_the_models_own_checkpoint(folder: Path) -> None:
    from diffusers import Cosmos3OmniTransformer

    model = Cosmos3OmniTransformer.from_pretrained(folder / "tiny" / "transformer")
    for home in (DISK, Residency(evict="auto")):
        with pytest.raises(LayoutError, match=r"this model is in memory only .* pass checkpoint=FOLDER"):
            parallelize(model, Layout(), residency=home)
    with torch.no_grad():
        model.layers[1].mlp.up_proj.weight[0, 0] += 1
    with pytest.raises(CheckpointError, match=r"other values for layers\.1\.mlp\.up_proj\.weight than"):
        parallelize(model, Layout(), residency=DISK, checkpoint=folder / "tiny" / "transformer")
    assert sharding_of(model) is None


def test_a_checkpoint_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", TinyOptions(layers=2))
    with pytest.raises(CheckpointError):
        parallelize(model_of(folder), Layout(), residency=DISK, checkpoint=other / "transformer")


def test_a_model_on_meta_is_told_what_to_do() -> None:
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(
        PlanError, match=r"no values to split: weight.*on meta; armillary\.load\(folder\) reads"
    ):
        parallelize(model, Layout(), plan={})


def test_a_device_is_where_everything_goes(folder: Path) -> None:
    model = parallelize(model_of(folder), Layout(), device="meta")
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}


def test_frozen_parameters_stay_frozen(folder: Path) -> None:
    model = model_of(folder, prefill=False).requires_grad_(False)
    parallelize(model, Layout(), device="cpu", prefill=False)
    assert not any(p.requires_grad for p in model.parameters())


def on_ranks_residency_comes_before_the_split_or_after_it(world: World) -> None:
    """Three orders, both homes; bit-equal to the load that does all at once."""
    for layout in (TP2, TP2_ULYSSES2):
        mesh = world.mesh(layout)
        if mesh is None:
            continue
        at_once = outputs(model_of(world.folder, layout=layout, mesh=mesh))
        for home in (HOST, DISK):
            first = parallelize(model_of(world.folder), Layout(), residency=home)
            parallelize(first, layout, mesh=mesh)
            together = parallelize(model_of(world.folder), layout, residency=home, mesh=mesh)
            last = parallelize(model_of(world.folder), layout, mesh=mesh)
            parallelize(last, layout, residency=home)
            loaded = model_of(world.folder, layout=layout, mesh=mesh, residency=home)
            for model in (first, together, last, parallelize(loaded, layout, residency=Residency())):
                assert same_bits(outputs(model), at_once), (layout, home)


def on_ranks_each_rank_keeps_a_host_copy_of_its_own_ranges(world: World) -> None:
    mesh = world.mesh(TP2)
    if mesh is None:
        return
    model = parallelize(model_of(world.folder), TP2, residency=HOST, mesh=mesh)
    sharding = sharding_of(model)
    assert sharding is not None
    assert sharding.weights is not None
    for name, local in sharding.weights.away.items():
        shape = sharding.resolved.local_shape(name, mesh.tp.rank)
        assert local.shape == shape
        assert model.get_parameter(name).shape == shape


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    return run_cases(__name__, 4, folder)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
