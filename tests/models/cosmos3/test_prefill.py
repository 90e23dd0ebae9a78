"""Prompt reuse: bit-exact with recomputation, once per prompt, and no prompt is taken for another."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.layout import Layout
from armillary.models.cosmos3.attention import PromptKeys
from armillary.models.cosmos3.prefill import PromptStore
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from armillary.residency import Residency
from packed_forward import Packed

LAYERS = 2
VARIANTS = {
    "silu-bias": TinyOptions(bias=True, layers=LAYERS),
    "relu2-bias": TinyOptions(variant="relu2", bias=True, layers=LAYERS),
    "silu-k-norm-for-gen": TinyOptions(
        qk_norm_for_text=False, use_und_k_norm_for_gen=True, sound=False, action=False, layers=LAYERS
    ),
}
MIXED = Packed(sounds=[5], actions=[3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefill")
    for name, options in VARIANTS.items():
        write_tiny(folder / name, options)
    return folder


def model_of(folder: Path, variant: str = "silu-bias", prefill: bool = True, **how: Any) -> Any:
    return load(folder / variant, subfolder="transformer", prefill=prefill, **how)


@pytest.fixture
def model(folder: Path) -> Any:
    return model_of(folder)


def store_of(model: Any) -> PromptStore:
    store = model._run_decoder_stack.__self__.store
    assert isinstance(store, PromptStore)
    return store


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_reused_prompt_gives_the_bits_of_a_recomputed_one(
    folder: Path, variant: str, dtype: torch.dtype
) -> None:
    packs = [Packed(timestep=t) for t in (900.0, 500.0, 20.0)] + [
        Packed(ids=[3], grids=[(1, 1, 1), (2, 1, 2)])
    ]
    if variant != "silu-k-norm-for-gen":
        packs += [Packed(actions=[3]), *([MIXED] if variant == "silu-bias" else [])]
    stock, reusing = (model_of(folder, variant, prefill, dtype=dtype) for prefill in (False, True))
    for pack in packs:
        assert same_bits(pack.run(reusing), pack.run(stock))


def test_both_roads_reuse_prompts(folder: Path) -> None:
    stock = model_of(folder, prefill=False)
    expected = MIXED.run(stock)
    assert same_bits(MIXED.run(parallelize(stock, Layout(), prefill=True)), expected)
    assert len(store_of(stock)) == 1


def test_the_understanding_layers_run_once_per_prompt_and_the_last_one_only_for_its_keys(model: Any) -> None:
    calls: Counter[str] = Counter()
    for number, layer in enumerate(model.layers):
        for name in ("self_attn.to_q", "self_attn.to_k", "self_attn.add_q_proj", "mlp", "mlp_moe_gen"):
            layer.get_submodule(name).register_forward_hook(
                lambda *_, key=f"{number}.{name}": calls.update([key])
            )
    prompts = [Packed(ids=[1, 2, 3]), Packed(ids=[4, 5])]
    for step in range(4):
        for prompt in prompts:
            Packed(ids=prompt.ids, timestep=900.0 - step).run(model)
    once = {key: calls[key] for key in ("0.self_attn.to_k", "1.self_attn.to_k", "0.self_attn.to_q", "0.mlp")}
    assert set(once.values()) == {2}
    assert calls["1.self_attn.to_q"] == calls["1.mlp"] == 0
    assert {calls[f"{i}.{name}"] for i in (0, 1) for name in ("self_attn.add_q_proj", "mlp_moe_gen")} == {8}


@pytest.mark.parametrize(
    "other",
    [
        Packed(ids=(5, 9, 2, 7, 7, 30, 1)),
        Packed(ids=(5, 9, 2, 7, 7, 1)),
        Packed(shift=1),
    ],
    ids=["other-order", "shorter", "other-positions"],
)
def test_no_prompt_is_taken_for_another(folder: Path, model: Any, other: Packed) -> None:
    Packed().run(model)
    assert same_bits(other.run(model), other.run(model_of(folder, prefill=False)))
    assert len(store_of(model)) == 2


def test_the_same_words_in_other_places_are_another_prompt(folder: Path, model: Any) -> None:
    inputs = Packed().inputs(model)
    with torch.no_grad():
        model(**inputs)
        inputs["text_indexes"] = inputs["text_indexes"].flip(0)
        made = model(**inputs, return_dict=False)[0]
        expected = model_of(folder, prefill=False)(**inputs, return_dict=False)[0]
    assert same_bits(made, expected)


def test_another_dtype_is_another_prompt(folder: Path, model: Any) -> None:
    Packed().run(model)
    for name, parameter in model.named_parameters():
        if not name.startswith("time_embedder"):  # which is kept in float32
            parameter.data = parameter.data.bfloat16()
    stock = model_of(folder, prefill=False, dtype=torch.bfloat16)
    assert same_bits(Packed().run(model), Packed().run(stock))


def test_other_weights_forget_every_prompt(folder: Path, model: Any) -> None:
    Packed().run(model)
    other = model_of(folder, prefill=False)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    expected = Packed().run(other)
    model.load_state_dict(other.state_dict())
    assert same_bits(Packed().run(model), expected)
    assert len(store_of(model)) == 1


@torch.no_grad()
@pytest.mark.parametrize("name", ["layers.0.mlp.down_proj.weight", "embed_tokens.weight"])
def test_a_weight_that_is_written_to_or_replaced_forgets_every_prompt(
    folder: Path, model: Any, name: str
) -> None:
    stock = model_of(folder, prefill=False)
    before = Packed().run(model)
    for change in (lambda weight: weight.mul_(3), lambda weight: setattr(weight, "data", weight * 2)):
        for one in (stock, model):
            change(one.get_parameter(name))
        made = Packed().run(model)
        assert same_bits(made, Packed().run(stock))
        assert not same_bits(made, before)


def test_prompts_are_kept_while_the_weights_that_made_them_live_elsewhere(folder: Path) -> None:
    model, calls = model_of(folder, residency=Residency(evict="disk", offload="disk")), Counter[str]()
    model.layers[0].mlp.register_forward_hook(lambda *_: calls.update(["mlp"]))
    for timestep in (900.0, 500.0):
        Packed(timestep=timestep).run(model)
    assert calls["mlp"] == 1


def test_another_length_or_noise_uses_the_stored_prompt(model: Any) -> None:
    for pack in (Packed(), Packed(grids=[(1, 2, 2)]), Packed(seed=4), MIXED):
        pack.run(model)
    assert len(store_of(model)) == 1


def test_positional_arguments_are_understood(folder: Path, model: Any) -> None:
    inputs = Packed().inputs(model)
    with torch.no_grad():
        made = model(*inputs.values())
    assert same_bits(made.sample, Packed().run(model_of(folder, prefill=False)))


def test_a_backward_pass_fails_instead_of_missing_the_prompts_gradients(model: Any) -> None:
    out = model(**Packed().inputs(model)).sample[0]
    with pytest.raises(RuntimeError, match="does not require grad"):
        out.sum().backward()


def prompt_of(nbytes: int) -> tuple[PromptKeys, ...]:
    return (
        PromptKeys(torch.zeros(nbytes // 2, dtype=torch.uint8), torch.zeros(nbytes // 2, dtype=torch.uint8)),
    )


def test_the_store_gives_back_what_was_put_and_nothing_else() -> None:
    store, prompt = PromptStore(), prompt_of(8)
    store.put("a", prompt)
    assert store.get("a") is prompt
    assert store.get("b") is None


def test_the_store_is_bounded_in_bytes_and_the_prompt_used_longest_ago_goes_first() -> None:
    store = PromptStore(max_bytes=40)
    for key in "abcd":
        store.put(key, prompt_of(10))
    assert store.get("a")
    store.put("e", prompt_of(10))
    assert store.nbytes == 40
    assert store.get("b") is None
    assert all(store.get(key) for key in "acde")


def test_the_two_prompts_of_a_generation_stay_however_large() -> None:
    store = PromptStore(max_bytes=40)
    for key in "abc":
        store.put(key, prompt_of(100))
    assert (len(store), store.nbytes) == (2, 200)
    assert store.get("a") is None


def test_a_prompt_that_is_put_again_is_counted_once() -> None:
    store = PromptStore()
    for _ in range(3):
        store.put("a", prompt_of(10))
    assert (len(store), store.nbytes) == (1, 10)
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
