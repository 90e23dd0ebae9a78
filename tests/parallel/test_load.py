"""From a checkpoint to this rank's part of the model: the same as splitting the whole one, on every rank."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer, TensorParallelConfig
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3AttnProcessor

import armillary.parallel.load
from armillary.errors import CheckpointError, EngineError, LayoutError, PlanError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from rank_cases import Told, World, cases_of, run_cases

TP2, TP4 = Layout(tp=2), Layout(tp=4)
SMALL = TinyOptions(layers=2, hidden=32, head_dim=8, intermediate=64, vocab=321)
CHECKPOINTS = {
    # tp=4 copies the two K/V heads; 321 rows do not divide
    "copies": replace(SMALL, bias=True, kv_heads=2),
    "relu2": replace(SMALL, variant="relu2", bias=True, files=3),
    "bfloat16": replace(SMALL, dtype="bfloat16"),
    "other-seed": replace(SMALL, bias=True, kv_heads=2, seed=1),
}


def write_checkpoints(folder: Path) -> Path:
    for name, options in CHECKPOINTS.items():
        write_tiny(folder / name, options)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"))


def sharded(world: World, name: str, layout: Layout, **arguments: Any) -> Any:
    mesh = arguments.pop("mesh", None) or world.block(layout)
    folder = world.folder / name
    return load(folder, subfolder="transformer", layout=layout, mesh=mesh, **arguments)


def whole(world: World, name: str, dtype: torch.dtype) -> Any:
    return Cosmos3OmniTransformer.from_pretrained(
        world.folder / name, subfolder="transformer", torch_dtype=dtype
    )


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Everything a model holds, also what is in no state dict."""
    return dict(model.state_dict(keep_vars=True)) | dict(model.named_buffers())


def assert_same_model(one: Any, other: Any) -> None:
    mine, theirs = tensors_of(one), tensors_of(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
        assert not tensor.is_meta
        assert tensor.requires_grad == theirs[name].requires_grad
    assert type(one) is type(other) is Cosmos3OmniTransformer
    assert one.training is other.training is False
    assert one.dtype == other.dtype


def roads(world: World) -> Iterator[tuple[Any, Any]]:
    """(loaded, split in memory) for each checkpoint, dtype and degree."""
    for name in ("copies", "relu2", "bfloat16"):
        for dtype in (torch.float32, torch.bfloat16):
            for layout in (TP2, TP4):
                split = parallelize(whole(world, name, dtype), layout, mesh=world.block(layout))
                yield sharded(world, name, layout, dtype=dtype), split


def on_ranks_both_roads_give_the_same_tensors(world: World) -> None:
    for loaded, split in roads(world):
        assert_same_model(loaded, split)


def on_ranks_both_roads_set_the_same_sizes(world: World) -> None:
    def numbers(model: Any) -> dict[str, Any]:
        return {
            f"{path}.{name}": value
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, int)
        }

    for loaded, split in roads(world):
        assert numbers(loaded) == numbers(split)


def on_ranks_modules_kept_in_float32_stay_so_on_both_roads(world: World) -> None:
    for loaded, split in roads(world):
        for model in (loaded, split):
            kept = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
            if model.dtype == torch.bfloat16:
                assert kept == {name for name, _ in model.named_parameters() if "time_embedder" in name}
            assert model.rotary_emb.inv_freq.dtype == torch.float32


def on_ranks_shards_are_plain_tensors_that_own_their_memory(world: World) -> None:
    for dtype in (torch.float32, torch.bfloat16, None):
        for name, parameter in sharded(world, "copies", TP4, dtype=dtype).named_parameters():
            assert type(parameter.data) is torch.Tensor
            assert parameter.untyped_storage().nbytes() == parameter.nbytes, name
            assert parameter.is_contiguous()
            assert not parameter.requires_grad


def on_ranks_without_a_dtype_each_tensor_keeps_its_own(world: World) -> None:
    model = sharded(world, "bfloat16", TP4)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "time_embedder" in name else torch.bfloat16)


def on_ranks_heads_are_local_and_the_global_ones_stand_beside_them(world: World) -> None:
    attention = sharded(world, "copies", TP4).layers[1].self_attn
    local = (attention.num_attention_heads, attention.num_key_value_heads, attention.num_key_value_groups)
    assert local == (2, 1, 2)
    assert (attention.full_num_attention_heads, attention.full_num_key_value_heads) == (8, 2)
    assert attention.full_num_key_value_groups == 4
    assert [*attention.add_k_proj.weight.shape] == [8, 32]


def on_ranks_key_value_heads_go_to_the_queries_that_use_them(world: World) -> None:
    attention = whole(world, "copies", torch.float32).layers[0].self_attn
    mine = sharded(world, "copies", TP4).layers[0].self_attn
    kv_head = (0, 0, 1, 1)[world.rank]
    assert torch.equal(mine.to_k.weight, attention.to_k.weight.view(2, 8, 32)[kv_head])
    assert torch.equal(mine.add_v_proj.bias, attention.add_v_proj.bias.view(2, 8)[kv_head])
    assert torch.equal(mine.to_q.weight, attention.to_q.weight.view(4, 16, 32)[world.rank])
    assert torch.equal(mine.to_add_out.weight, attention.to_add_out.weight.view(32, 4, 16)[:, world.rank])


def on_ranks_attention_processors_are_the_stock_ones(world: World) -> None:
    model = whole(world, "copies", torch.float32)
    before = model.attn_processors
    parallelize(model, TP4, mesh=world.block(TP4))
    assert model.attn_processors == before
    for processor in sharded(world, "copies", TP4).attn_processors.values():
        assert type(processor) is Cosmos3AttnProcessor
        assert vars(processor) == {}


def on_ranks_slices_follow_the_place_on_the_mesh_not_the_number_of_the_rank(world: World) -> None:
    expected = whole(world, "copies", torch.float32)
    for ranks in ([2, 1], [3, 1], [1, 0]):
        mesh = world.mesh(TP2, ranks)
        if mesh is not None:
            place = ranks.index(world.rank)
            loaded = sharded(world, "copies", TP2, mesh=mesh)
            assert torch.equal(
                loaded.layers[0].mlp.up_proj.weight, expected.layers[0].mlp.up_proj.weight.chunk(2)[place]
            )
            assert torch.equal(
                loaded.layers[0].mlp.down_proj.weight,
                expected.layers[0].mlp.down_proj.weight.chunk(2, dim=1)[place],
            )
            assert_same_model(loaded, parallelize(whole(world, "copies", torch.float32), TP2, mesh=mesh))


def on_ranks_logits_are_whole(world: World) -> None:
    model, ids = whole(world, "copies", torch.float32), torch.arange(321)
    with torch.no_grad():
        expected = model.lm_head(model.embed_tokens(ids))
        loaded = sharded(world, "copies", TP4)
        assert torch.equal(loaded.embed_tokens(ids), model.embed_tokens(ids))
        assert torch.allclose(loaded.lm_head(model.embed_tokens(ids)), expected, atol=1e-5)


def on_ranks_diffusers_own_config_is_taken_for_a_layout(world: World) -> None:
    config = TensorParallelConfig(tp_degree=4)
    loaded = load(world.folder / "copies", subfolder="transformer", layout=config)
    assert_same_model(loaded, sharded(world, "copies", TP4))
    own = TensorParallelConfig(mesh=world.mesh(Layout(cfg=2, tp=2), [0, 2, 1, 3]).device_mesh)
    with pytest.raises(LayoutError, match=r"mesh is on ranks \[0, 2, 1, 3\].*mesh=build_mesh"):
        load(world.folder / "copies", subfolder="transformer", layout=own)


def on_ranks_copies_for_guidance_hold_the_same_shards(world: World) -> None:
    layout = Layout(cfg=2, tp=2)
    loaded = sharded(world, "copies", layout, mesh=world.mesh(layout))
    assert_same_model(loaded, sharded(world, "copies", TP2))


def on_ranks_another_checkpoint_on_one_rank_is_found(world: World) -> None:
    name = "other-seed" if world.rank == 2 else "copies"
    with pytest.raises(EngineError, match=r"differ in checkpoint: .*to_out\.bias is"):
        sharded(world, name, TP4)
    with pytest.raises(EngineError, match=r"differ in plan: lm_head"):
        sharded(world, "copies", TP4, overrides={"lm_head": None} if world.rank == 2 else None)


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(armillary.parallel.load, "read_tensors", read)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (LayoutError, "tp=3 does not divide the 8 query heads", {"layout": Layout(tp=3)}),
        (LayoutError, "tp=2 needs 2 ranks and this is one process", {"layout": TP2}),
        (LayoutError, "ring=2", {"layout": Layout(ring=2)}),
        (PlanError, "lm_haed", {"overrides": {"lm_haed": "colwise"}}),
        (PlanError, "'sideways'", {"plan": {"lm_head": "sideways"}}),
        (CheckpointError, "has no subfolder transformers", {"subfolder": "transformers"}),
        (CheckpointError, "not a checkpoint", {"subfolder": None}),
    ],
)
def test_refused_before_a_tensor_is_read(
    checkpoints: Path, error: type[Exception], message: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        load(checkpoints / "copies", **{"subfolder": "transformer", **arguments})


@pytest.mark.parametrize("name", ["NoSuchModel", "UniPCMultistepScheduler", "apply_first_block_cache"])
def test_a_class_that_is_no_model_is_refused_with_those_that_are_known(
    checkpoints: Path, tmp_path: Path, name: str
) -> None:
    for file in (checkpoints / "copies/transformer").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("Cosmos3OmniTransformer", name))
    known = f"no model class {name}; .*plans for: .*Cosmos3OmniTransformer"
    with pytest.raises(CheckpointError, match=known):
        load(tmp_path)


def test_a_model_without_a_plan_loads_on_one_rank(checkpoints: Path) -> None:
    vae = load(checkpoints / "copies", subfolder="vae")
    stock = AutoencoderKLWan.from_pretrained(checkpoints / "copies", subfolder="vae")
    assert type(vae) is AutoencoderKLWan
    mine, theirs = tensors_of(vae), tensors_of(stock)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def told(checkpoints: Path) -> Told:
    return run_cases(__name__, 4, checkpoints)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
