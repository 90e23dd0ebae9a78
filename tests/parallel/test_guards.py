"""What a sharded model refuses, what it says instead, and what it goes on doing."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache, apply_group_offloading
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor, FluxIPAdapterAttnProcessor
from torch import nn

from armillary import Optional, PlanError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.models.tiny_cases import tiny_cases
from armillary.parallel.guards import REFUSED
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from armillary.parallel.save import save
from armillary.plan.styles import PackedColwise
from rank_cases import Told, World, cases_of, run_cases

TP2 = Layout(tp=2)
Call = Callable[[Any], object]
CALLS: dict[str, Call] = {
    "load_lora_adapter": lambda model: model.load_lora_adapter({}),
    "add_adapter": lambda model: model.add_adapter(None),
    "save_pretrained": lambda model: model.save_pretrained("nowhere"),
    "dequantize": lambda model: model.dequantize(),
    "enable_group_offload": lambda model: model.enable_group_offload(torch.device("cpu")),
    "enable_parallelism": lambda model: model.enable_parallelism(config=None),
}


def _flux() -> Any:
    return next(case for case in tiny_cases() if case.model_class == "FluxTransformer2DModel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = TinyOptions(layers=2, hidden=32, head_dim=8, intermediate=64, vocab=300, kv_heads=2)
    return write_tiny(tmp_path_factory.mktemp("guards") / "source", options) / "transformer"


def _refused(call: Call, model: Any) -> str:
    with pytest.raises(PlanError) as caught:
        call(model)
    return str(caught.value)


def on_ranks_methods_that_would_be_wrong_say_what_to_do_instead(world: World) -> None:
    model = load(world.folder / "transformer", layout=TP2, mesh=world.mesh(TP2))
    for method, call in CALLS.items():
        why, instead = REFUSED[method]
        name = "Cosmos3OmniTransformer that is split over tp=2"
        assert _refused(call, model) == f"{method} on a {name}: {why}; {instead}"


def on_ranks_group_offloading_is_refused_in_its_function_form_too(world: World) -> None:
    model = load(world.folder / "transformer", layout=TP2, mesh=world.mesh(TP2))
    for kind in ("leaf_level", "block_level"):
        options = {"offload_type": kind, "num_blocks_per_group": 1}
        line = _refused(lambda m, o=options: apply_group_offloading(m, torch.device("cpu"), **o), model)  # type: ignore[misc]
        assert "pass residency=Residency(offload=...)" in line
    registries: list[Any] = [module._diffusers_hook for module in model.modules()]
    assert not any(registry.hooks for registry in registries)


def on_ranks_moving_to_another_device_is_refused_and_casting_is_not(world: World) -> None:
    model = load(world.folder / "transformer", layout=TP2, mesh=world.mesh(TP2))
    for call in (lambda m: m.to("meta"), lambda m: m.to(device="meta", dtype=torch.bfloat16)):
        assert "from cpu to meta: every rank has its own device" in _refused(call, model)
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert model.to("cpu").cpu().eval() is model
    assert model.bfloat16().dtype == torch.bfloat16


def on_ranks_a_sharded_model_is_saved_by_armillary(world: World) -> None:
    model = load(world.folder / "transformer", layout=TP2, mesh=world.mesh(TP2))
    save(model, world.folder / "saved")
    again = load(world.folder / "saved").state_dict()
    whole = load(world.folder / "transformer").state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.items())


def on_ranks_a_cache_of_steps_is_refused_where_ranks_see_rows_of_their_own(world: World) -> None:
    config = FirstBlockCacheConfig(threshold=0.1)
    model = parallelize(_flux().model(), Layout(ulysses=2), mesh=world.mesh(Layout(ulysses=2)))
    assert "enable_cache on a FluxTransformer2DModel" in _refused(lambda m: m.enable_cache(config), model)
    assert "with tp or cfg alone" in _refused(lambda m: apply_first_block_cache(m, config), model)
    split: Any = parallelize(_flux().model(), TP2, mesh=world.mesh(TP2))
    split.enable_cache(config)
    assert split.is_cache_enabled


def _adapted(model: Any) -> Any:
    """The processors of a model with an IP adapter at its first attention."""
    first = "transformer_blocks.0.attn.processor"
    return model.attn_processors | {first: FluxIPAdapterAttnProcessor(32, 32)}


def on_ranks_an_ip_adapter_is_refused_after_a_split_by_heads(world: World) -> None:
    model: Any = parallelize(_flux().model(), TP2, mesh=world.mesh(TP2))
    before = model.transformer_blocks[0].attn.processor
    for call in (
        lambda m: m.set_attn_processor(_adapted(m)),
        lambda m: m.transformer_blocks[0].attn.set_processor(FluxIPAdapterAttnProcessor(32, 32)),
        lambda m: m._load_ip_adapter_weights([]),
    ):
        assert "its layers stay whole, and would find the heads of this rank" in _refused(call, model)
    assert model.transformer_blocks[0].attn.processor is before
    model.set_attn_processor(FluxAttnProcessor())


def on_ranks_projections_are_fused_before_the_split_not_after_it(world: World) -> None:
    case = _flux()
    whole, fused, split = case.model(), case.model(), case.model()
    whole.fuse_qkv_projections()
    fused.fuse_qkv_projections()
    with torch.no_grad():
        expected = whole(**case.inputs())[0]
        parallelize(fused, TP2, mesh=world.mesh(TP2))
        assert "transformer_blocks.0.attn.to_qkv.weight" in fused._armillary_sharding.resolved.shards
        torch.testing.assert_close(fused(**case.inputs())[0], expected, rtol=1e-5, atol=1e-5)
        parallelize(split, TP2, mesh=world.mesh(TP2))
        torch.testing.assert_close(split(**case.inputs())[0], expected, rtol=1e-5, atol=1e-5)
    for call in (
        lambda m: m.fuse_qkv_projections(),
        lambda m: m.transformer_blocks[0].attn.fuse_projections(),
    ):
        assert "before armillary.parallelize: plans cover the fused layers" in _refused(call, split)


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    return run_cases(__name__, 2, folder.parent)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_2_ranks(told: Told, case: str) -> None:
    told.check(case)


def test_a_model_of_one_rank_is_left_as_it_is(folder: Path) -> None:
    model = load(folder)
    apply_group_offloading(model, torch.device("cpu"), offload_type="leaf_level")
    assert "_apply" not in vars(model)
    assert "save_pretrained" not in vars(model)


def test_weights_elsewhere_are_neither_cast_nor_moved(folder: Path) -> None:
    from armillary import Residency

    model = load(folder, residency=Residency(offload="disk"))
    assert "Cosmos3OmniTransformer with weights elsewhere to torch.float16" in _refused(
        lambda m: m.half(), model
    )
    line = _refused(lambda m: m.enable_layerwise_casting(torch.float16), model)
    assert "give armillary.load the dtype" in line


class _Wrapped(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.base_layer = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda model: setattr(model, "up", _Wrapped()), "up has LoRA layers"),
        (
            lambda model: setattr(model.up, "_hf_hook", object()),
            "up has an offload of diffusers or accelerate",
        ),
        (
            lambda model: apply_group_offloading(model, torch.device("cpu"), offload_type="leaf_level"),
            "up has an offload of diffusers or accelerate",
        ),
        (
            lambda model: setattr(
                model.up, "weight", nn.Parameter(torch.ones(8, 4, dtype=torch.int8), requires_grad=False)
            ),
            "up.weight has no plain values",
        ),
        (lambda model: setattr(model, "is_quantized", True), "ModuleDict has no plain values"),
    ],
)
def test_a_model_that_something_else_has_changed_is_not_split(change: Call, line: str) -> None:
    model = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
    change(model)
    with pytest.raises(PlanError, match=line):
        parallelize(model, Layout(), plan={"up": "colwise", "down": "rowwise"})


def test_a_model_with_a_cache_of_steps_is_not_split() -> None:
    model = _flux().model()
    model.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(
        PlanError, match=r"transformer_blocks\.0 has a cache of steps.*disable_cache\(\) first"
    ):
        parallelize(model, TP2)


def test_a_model_with_an_ip_adapter_is_not_split_by_heads() -> None:
    model = _flux().model()
    model.set_attn_processor(_adapted(model))
    with pytest.raises(
        PlanError, match=r"blocks\.\*\.attn has a FluxIPAdapterAttnProcessor: its layers stay"
    ):
        parallelize(model, TP2)
    assert "save_pretrained" not in vars(model)


def test_skipped_keys_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
    plan = {
        "up": "colwise",
        "down": "rowwise",
        "gate": Optional("colwise"),
        "qkv": Optional(PackedColwise([1])),
    }
    with caplog.at_level(logging.INFO, "armillary"):
        parallelize(model, Layout(), plan=plan)
        parallelize(model, Layout(), plan=plan)
    assert [record.getMessage() for record in caplog.records] == [
        "optional plan keys without a module in ModuleDict: gate, qkv"
    ]
