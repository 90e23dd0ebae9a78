"""Weights that live elsewhere change no bit of what a model computes, nor of what it embeds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.models.cosmos3.pathways import UNUSED_BY_GENERATION
from armillary.models.cosmos3.streams import KEPT_PROMPTS
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.residency import Residency
from packed_forward import Packed

MIXED = Packed(sounds=[5], actions=[3])
HOMES = {
    "offload-disk": Residency(offload="disk"),
    "offload-host": Residency(offload="host", prefetch=2),
    "resident-layer": Residency(offload="disk", resident_layers=1),
    "all-resident": Residency(offload="disk", resident_layers=9),
    "evict-disk": Residency(evict="disk"),
    "evict-host": Residency(evict="host"),
    "both": Residency(offload="host", evict="disk", prefetch=9),
    "auto": Residency(offload="auto", evict="auto"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("streams") / "tiny", TinyOptions(layers=3, bias=True))


def model_of(folder: Path, residency: Residency | None = None, **how: Any) -> Any:
    how = {"leave_out": UNUSED_BY_GENERATION, **how}
    return load(folder, subfolder="transformer", residency=residency, **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("home", HOMES)
def test_the_bits_are_those_of_a_model_on_the_device(folder: Path, home: str, dtype: torch.dtype) -> None:
    stock, moved = model_of(folder, dtype=dtype), model_of(folder, HOMES[home], dtype=dtype)
    for pack in (MIXED, Packed(timestep=20.0), Packed(ids=[3]), MIXED):
        for made, expected in zip(pack.run(moved), pack.run(stock), strict=True):
            assert torch.equal(made, expected)


def held(model: Any) -> dict[str, int]:
    """Bytes in memory of every parameter that has its own."""
    return {name: p.untyped_storage().nbytes() for name, p in model.named_parameters()}


def test_while_it_denoises_nothing_of_the_prompts_pathway_is_held(folder: Path) -> None:
    model = model_of(folder, Residency(evict="disk"))
    MIXED.run(model)
    nbytes = held(model)
    assert nbytes["embed_tokens.weight"] <= 4
    assert all(nbytes[f"layers.{i}.mlp.up_proj.weight"] <= 4 for i in range(3))
    assert all(nbytes[f"layers.{i}.mlp_moe_gen.up_proj.weight"] > 4 for i in range(3))
    prefill = model._run_decoder_stack.__self__
    assert not prefill.pathways.understanding._buffers


def test_evicted_layers_are_read_once_per_prompt_and_not_at_every_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(folder, Residency(evict="disk"))
    stream = model._run_decoder_stack.__self__.pathways.understanding
    read: list[int] = []
    plain = stream._read

    def watched(number: int, slot: int) -> None:
        read.append(number)
        plain(number, slot)

    monkeypatch.setattr(stream, "_read", watched)
    for step in range(4):
        Packed(timestep=900.0 - step).run(model)
    assert set(read) == {0, 1, 2}
    assert len(read) <= 4  # the first layer may be fetched for a prompt that does not come
    Packed(ids=[8, 8]).run(model)
    assert len(read) <= 8


def test_layer_wise_offload_uses_two_buffers_a_pathway_for_all_steps(folder: Path) -> None:
    model = model_of(folder, Residency(offload="disk"))
    places: set[int] = set()
    for layer in model.layers:
        layer.mlp_moe_gen.register_forward_hook(
            lambda mlp, *_: places.add(mlp.up_proj.weight.untyped_storage().data_ptr())
        )
    for step in range(5):
        Packed(timestep=900.0 - step).run(model)
    assert len(places) == 2


def test_a_prompts_rows_are_those_of_the_whole_table_and_are_kept(folder: Path) -> None:
    whole, evicted = model_of(folder), model_of(folder, Residency(evict="disk"))
    for ids in ([7], [3, 3, 1, 300, 3], list(range(50))):
        tensor = torch.tensor(ids)
        assert torch.equal(evicted.embed_tokens(tensor), whole.embed_tokens(tensor))
        assert evicted.embed_tokens(tensor) is evicted.embed_tokens(tensor.clone())


def test_kept_rows_are_bounded(folder: Path) -> None:
    embedding: Any = model_of(folder, Residency(evict="disk")).embed_tokens
    first = embedding(torch.tensor([0]))
    for number in range(1, KEPT_PROMPTS + 1):
        embedding(torch.tensor([number]))
    again = embedding(torch.tensor([0]))
    assert again is not first
    assert torch.equal(again, first)


def test_an_id_outside_the_vocabulary_is_refused_as_the_whole_table_does(folder: Path) -> None:
    for residency in (None, Residency(evict="disk")):
        embedding: Any = model_of(folder, residency).embed_tokens
        with pytest.raises(IndexError):
            embedding(torch.tensor([1, 320]))


def test_what_generation_never_calls_is_not_loaded(folder: Path) -> None:
    assert not any(name.startswith("lm_head") for name in held(model_of(folder)))
    assert any(name.startswith("lm_head") for name in held(model_of(folder, leave_out=())))
