"""A checkpoint folder held against the class its config names: headers only, everything wrong at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from armillary import CheckpointError
from armillary.models.cosmos3.tiny import TinyOptions, tiny_config
from armillary.models.cosmos3.tiny.parts import write_transformer
from armillary.models.described import class_named_in, describe, kind_of, loaded_dtype

WEIGHTS = "diffusion_pytorch_model.safetensors"
OPTIONS = TinyOptions(layers=1, sound=False, action=False, dtype="bfloat16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_transformer(tmp_path, tiny_config(OPTIONS), seed=0, dtype=OPTIONS.dtype, files=1)
    return tmp_path


def _configure(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(config))


def _refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        describe(folder)
    return caught.value


def test_a_checkpoint_is_described_by_its_class_and_its_stored_dtypes(folder: Path) -> None:
    found = describe(folder)
    assert found.model_class == found.skeleton.model_class == "Cosmos3OmniTransformer"
    assert found.skeleton.nbytes == found.index.nbytes
    assert found.skeleton.parameters["proj_in.weight"].dtype == "bfloat16"


def test_another_dtype_is_that_of_the_loaded_model_and_leaves_kept_modules(folder: Path) -> None:
    parameters = describe(folder, dtype="float16").skeleton.parameters
    assert parameters["proj_in.weight"].dtype == "float16"
    assert parameters["time_embedder.linear_1.weight"].dtype == "float32"


@pytest.mark.parametrize(
    ("name", "stored", "asked", "dtype"),
    [
        ("proj.weight", "BF16", None, "bfloat16"),
        ("proj.weight", "F32", "bfloat16", "bfloat16"),
        ("time_embedder.weight", "BF16", "bfloat16", "float32"),
        ("blocks.0.time_embedder.weight", "BF16", None, "float32"),
        ("time_embedder_2.weight", "BF16", None, "bfloat16"),
        ("steps", "I64", "bfloat16", "int64"),
        ("time_embedder.steps", "I64", None, "int64"),
    ],
)
def test_the_dtype_in_memory(name: str, stored: str, asked: str | None, dtype: str) -> None:
    assert loaded_dtype(name, stored, asked, ("time_embedder",)).name == dtype


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"_class_name": "A"}, "A"),
        ({"architectures": ["B", "C"]}, "B"),
        ({"_class_name": "A", "architectures": ["B"]}, "A"),
    ],
)
def test_the_class_is_named_by_diffusers_or_transformers(config: dict[str, Any], name: str) -> None:
    assert class_named_in(config, Path()) == name


@pytest.mark.parametrize("config", [{}, {"_class_name": 3}, {"architectures": []}, {"architectures": "B"}])
def test_a_config_without_a_class_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(
        CheckpointError, match=r'config.json names no model class; it must hold "_class_name"'
    ):
        class_named_in(config, Path("here"))


def test_a_class_that_is_not_written_down_is_described_by_what_is_stored(folder: Path) -> None:
    known = describe(folder).skeleton
    _configure(folder, _class_name="Stranger")
    found = describe(folder)
    assert found.model_class == "Stranger"
    assert {n: (p.shape, p.kind) for n, p in found.skeleton.parameters.items()} == {
        n: (p.shape, p.kind) for n, p in known.parameters.items()
    }
    assert found.skeleton.heads == ()


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("proj.weight", {"weight": (4, 2)}, "linear"),
        ("proj.bias", {"weight": (4, 2), "bias": (4,)}, "linear"),
        ("norm.weight", {"weight": (4,)}, "norm"),
        ("norm.bias", {"weight": (4,), "bias": (4,)}, "norm"),
        ("embed_tokens.weight", {"weight": (4, 2)}, "embedding"),
        ("patch_embedding.weight", {"weight": (4, 2, 1, 2, 2)}, "other"),
        ("scale_shift_table", {}, "other"),
        ("blocks.0.scale_shift_table", {}, "other"),
        ("rotation.bias", {"bias": (4,)}, "other"),
    ],
)
def test_the_kind_of_a_module_by_what_is_stored(
    name: str, shapes: dict[str, tuple[int, ...]], kind: str
) -> None:
    assert kind_of(name, shapes) == kind


def test_values_that_no_model_can_have_are_refused_with_the_file(folder: Path) -> None:
    _configure(folder, hidden_size="64", num_key_value_heads=3)
    assert [str(problem) for problem in _refused(folder).problems] == [
        f"{folder / 'config.json'}: hidden_size='64' is no count; use a whole number from 1 up",
        f"{folder / 'config.json'}: num_key_value_heads=3 does not divide num_attention_heads=8; "
        "every K/V head serves equally many query heads",
    ]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda tensors: tensors.pop("proj_in.bias"), "missing-tensors"),
        (lambda tensors: tensors.update(proj_inn=tensors["proj_in.bias"].clone()), "extra-tensors"),
        (lambda tensors: tensors.update({"proj_in.bias": tensors["proj_in.bias"][1:]}), "tensor-shapes"),
    ],
)
def test_other_tensors_than_those_of_the_class_are_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], rule: str
) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    assert [problem.rule for problem in _refused(folder).problems] == [rule]


def test_a_config_of_other_sizes_than_the_weights_is_told_in_all_its_shapes(folder: Path) -> None:
    _configure(folder, hidden_size=32, num_hidden_layers=2)
    assert [problem.rule for problem in _refused(folder).problems] == ["missing-tensors", "tensor-shapes"]
