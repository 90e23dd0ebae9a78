"""A sharded model written as an ordinary checkpoint: the bytes that it was read from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Cosmos3OmniTransformer
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from armillary.errors import CheckpointError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from armillary.parallel.save import save
from rank_cases import Told, World, cases_of, run_cases

TP2, TP4 = Layout(tp=2), Layout(tp=4)
WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
# tp=4 copies the two K/V heads; 321 rows do not divide
OPTIONS = TinyOptions(
    layers=2, hidden=32, head_dim=8, intermediate=64, vocab=321, kv_heads=2, bias=True, dtype="bfloat16"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose one file safetensors itself has written, so that bytes can be compared."""
    folder = write_tiny(tmp_path_factory.mktemp("save") / "source", OPTIONS) / "transformer"
    save(load(folder), folder.parent / "saved-by-one")
    return folder.parent


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def assert_same_tensors(folder: Path, source: Path) -> None:
    saved, original = tensors_in(folder), tensors_in(source)
    assert saved.keys() == original.keys()
    for name, tensor in saved.items():
        assert tensor.dtype == original[name].dtype
        assert torch.equal(tensor.view(torch.uint8), original[name].view(torch.uint8)), name


def sharded(world: World, layout: Layout, **arguments: Any) -> Any:
    return load(world.folder / "transformer", layout=layout, mesh=world.mesh(layout), **arguments)


def test_one_process_writes_the_tensors_it_read(source: Path) -> None:
    assert_same_tensors(source / "saved-by-one", source / "transformer")
    with safe_open(source / "saved-by-one" / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def on_ranks_the_file_is_the_one_it_was_read_from_byte_by_byte(world: World) -> None:
    for layout in (TP4, Layout(cfg=2, tp=2)):
        folder = world.folder / f"whole-{layout}"
        save(sharded(world, layout), folder)
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", WEIGHTS]
        assert (folder / WEIGHTS).read_bytes() == (world.folder / "saved-by-one" / WEIGHTS).read_bytes()
        assert_same_tensors(folder, world.folder / "transformer")


def on_ranks_several_files_have_an_index_that_names_each_tensors_file(world: World) -> None:
    folder = world.folder / "several"
    save(sharded(world, TP4), folder, max_file_bytes=150_000)
    index = json.loads((folder / INDEX).read_text())
    files = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    assert len(files) > 2
    assert all(name in files[file] for name, file in index["weight_map"].items())
    assert index["metadata"]["total_size"] == sum(t.nbytes for file in files.values() for t in file.values())
    assert max(sum(t.nbytes for t in file.values()) for file in files.values()) <= 150_000
    assert_same_tensors(folder, world.folder / "transformer")


def on_ranks_what_is_saved_loads_in_diffusers_and_again_on_ranks(world: World) -> None:
    folder = world.folder / "again"
    save(sharded(world, TP4), folder, max_file_bytes=150_000)
    stock = Cosmos3OmniTransformer.from_pretrained(folder, torch_dtype=torch.bfloat16)
    original = Cosmos3OmniTransformer.from_pretrained(
        world.folder / "transformer", torch_dtype=torch.bfloat16
    )
    assert all(torch.equal(t, original.state_dict()[name]) for name, t in stock.state_dict().items())
    assert {k: v for k, v in stock.config.items() if k != "_name_or_path"} == {
        k: v for k, v in original.config.items() if k != "_name_or_path"
    }
    mine = load(folder, layout=TP4, mesh=world.mesh(TP4)).state_dict()
    assert all(torch.equal(t, mine[name]) for name, t in sharded(world, TP4).state_dict().items())


def on_ranks_a_model_split_in_memory_is_saved_whole(world: World) -> None:
    model = Cosmos3OmniTransformer.from_pretrained(world.folder / "transformer", torch_dtype=torch.bfloat16)
    save(parallelize(model, TP4, mesh=world.mesh(TP4)), world.folder / "in-memory")
    assert_same_tensors(world.folder / "in-memory", world.folder / "transformer")


def on_ranks_a_change_of_every_rank_is_saved(world: World) -> None:
    model = sharded(world, TP4)
    with torch.no_grad():
        model.layers[0].mlp.down_proj.weight.fill_(world.rank)
    save(model, world.folder / "changed")
    saved = tensors_in(world.folder / "changed")["layers.0.mlp.down_proj.weight"]
    assert [{*block.flatten().tolist()} for block in saved.chunk(4, dim=1)] == [{0}, {1}, {2}, {3}]


def on_ranks_ranks_in_another_order_save_the_same(world: World) -> None:
    mesh = world.mesh(TP2, [3, 1])
    if mesh is not None:
        model = load(world.folder / "transformer", layout=TP2, mesh=mesh)
        save(model, world.folder / "backwards")
        assert_same_tensors(world.folder / "backwards", world.folder / "transformer")


def on_ranks_an_earlier_checkpoint_is_replaced_and_nothing_else(world: World) -> None:
    folder, model = world.folder / "replaced", sharded(world, TP4)
    save(model, folder, max_file_bytes=150_000)
    if world.rank == 0:
        (folder / "notes.txt").write_text("keep me")
        shutil.copy(folder / "config.json", folder / "diffusion_pytorch_model.fp16.safetensors")
    save(model, folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", WEIGHTS, "notes.txt", "diffusion_pytorch_model.fp16.safetensors"}


def on_ranks_a_folder_that_cannot_be_written_is_told_to_every_rank(world: World) -> None:
    if world.rank == 0:
        (world.folder / "file").write_text("")
    model = sharded(world, TP4)  # the ranks meet here
    with pytest.raises(CheckpointError, match=r"file/inside cannot be written: .*Not a directory"):
        save(model, world.folder / "file/inside")


def on_ranks_a_failure_half_way_ends_on_every_rank_and_leaves_nothing(world: World) -> None:
    model = sharded(world, TP4)
    if world.rank == 0:  # the first file is full after one tensor
        import safetensors.torch

        def fail(*arguments: Any, **named: Any) -> None:
            raise safetensors.SafetensorError("no space left")

        written, safetensors.torch.save_file = safetensors.torch.save_file, fail
    try:
        with pytest.raises(CheckpointError, match="half cannot be written: no space left"):
            save(model, world.folder / "half", max_file_bytes=150_000)
    finally:
        if world.rank == 0:
            safetensors.torch.save_file = written
    assert not (world.folder / "half").exists()


def on_ranks_a_model_without_a_config_is_refused_on_every_rank(world: World) -> None:
    torch.manual_seed(0)
    model = parallelize(nn.Linear(4, 4), TP4, plan={}, mesh=world.mesh(TP4))
    with pytest.raises(CheckpointError, match="Linear has no save_config"):
        save(model, world.folder / "linear")
    assert not (world.folder / "linear").exists()


@pytest.fixture(scope="module")
def told(source: Path) -> Told:
    return run_cases(__name__, 4, source)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
