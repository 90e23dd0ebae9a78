"""`armillary tiny` writes what the stock pipeline loads offline, wherever the folder is moved."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniModularPipeline, Cosmos3OmniTransformer
from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition
from hypothesis import given, strategies as st
from PIL import Image
from safetensors.torch import load_file

from armillary.errors import RequestError
from armillary.models.cosmos3.tiny import VARIANTS, TinyOptions, tiny_config, write_tiny
from armillary.models.cosmos3.tiny.weights import split_evenly

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
PICTURE = Image.fromarray(np.arange(48 * 48 * 3, dtype=np.uint32).reshape(48, 48, 3).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default checkpoint, moved away from where it was written."""
    place = tmp_path_factory.mktemp("tiny")
    return write_tiny(place / "written", TinyOptions()).rename(place / "moved")


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    pipe = Cosmos3OmniModularPipeline.from_pretrained(folder)
    pipe.load_components()
    pipe.disable_safety_checker()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _run(pipeline: Any, prompt: str = "a ring", seed: int = 0, **arguments: Any) -> Any:
    size = {} if "action" in arguments else {"height": 32, "width": 32}
    generator = torch.Generator("cpu").manual_seed(seed)
    return pipeline(
        prompt=prompt, num_inference_steps=2, output_type="np", generator=generator, **size, **arguments
    )


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    return (
        (p.relative_to(folder).as_posix(), p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()
    )


def test_stock_pipeline_makes_a_picture(pipeline: Any) -> None:
    picture = np.asarray(_run(pipeline, num_frames=1).get("videos"))
    assert picture.shape == (1, 32, 32, 3)
    assert np.isfinite(picture).all()
    assert 0.05 < picture.std() < 0.45


@pytest.mark.parametrize("given_media", [{}, {"image": PICTURE}, {"video": [PICTURE] * 9}])
def test_stock_pipeline_makes_video_with_sound(pipeline: Any, given_media: dict[str, Any]) -> None:
    result = _run(pipeline, num_frames=9, enable_sound=True, **given_media)
    sound = result.get("sound")
    assert np.asarray(result.get("videos")).shape == (9, 32, 32, 3)
    assert result.get("sampling_rate") == 48_000
    assert sound.shape[0] == 2
    assert sound.shape[1] >= 48_000 * 9 / 24
    assert 0.01 < sound.std() < 0.9


def test_stock_pipeline_predicts_actions(pipeline: Any) -> None:
    action = CosmosActionCondition(
        mode="policy", chunk_size=4, domain_name="camera_pose", resolution_tier=256, image=PICTURE
    )
    actions = _run(pipeline, action=action).get("action")
    assert actions[0].shape == (4, 9)


def test_prompt_and_seed_decide_the_video(pipeline: Any) -> None:
    def video(**arguments: Any) -> Any:
        return np.asarray(_run(pipeline, num_frames=5, **arguments).get("videos"))

    assert (video() == video()).all()
    assert abs(video() - video(prompt="a sphere")).mean() > 1e-3
    assert abs(video() - video(seed=1)).mean() > 1e-2


def test_no_file_holds_a_path(folder: Path) -> None:
    for name, content in _files(folder):
        assert str(folder.parent).encode() not in content, name
    index = json.loads((folder / "modular_model_index.json").read_text())
    specs = [value[2] for value in index.values() if isinstance(value, list)]
    assert len(specs) == 5
    assert all(spec["pretrained_model_name_or_path"] is None for spec in specs)


def test_same_seed_gives_the_same_bytes_and_another_seed_others(folder: Path, tmp_path: Path) -> None:
    assert dict(_files(write_tiny(tmp_path / "again", TinyOptions()))) == dict(_files(folder))
    other = write_tiny(tmp_path / "other", TinyOptions(seed=1))
    assert (other / WEIGHTS).read_bytes() != (folder / WEIGHTS).read_bytes()


def test_default_is_small(folder: Path) -> None:
    assert (folder / WEIGHTS).stat().st_size < 3.1e6
    assert sum(len(content) for _, content in _files(folder)) < 10e6


def test_every_bias_and_norm_is_far_from_its_neutral_value(tmp_path: Path) -> None:
    tensors = load_file(write_tiny(tmp_path / "tiny", VARIANTS["silu-bias"]) / WEIGHTS)
    biases = [t for name, t in tensors.items() if name.endswith(("bias", "bias.weight", "modality_embed"))]
    norms = [t for name, t in tensors.items() if "norm" in name]
    assert len(biases) == 8 * 4 + 10  # four layers' attention; patches, time, sound and action
    assert all(bias.std() > 0.3 for bias in biases)
    assert all((norm - 1).std() > 0.1 for norm in norms)


@pytest.mark.parametrize("name", VARIANTS)
def test_stock_class_loads_every_variant_without_a_missing_or_extra_tensor(name: str, tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny", VARIANTS[name])
    _, info = Cosmos3OmniTransformer.from_pretrained(
        tmp_path / "tiny", subfolder="transformer", output_loading_info=True
    )
    assert not any(info.values())


def test_relu2_has_no_gate_and_no_text_norm_but_a_key_norm_for_generation(tmp_path: Path) -> None:
    names = load_file(write_tiny(tmp_path / "tiny", VARIANTS["relu2"]) / WEIGHTS).keys()
    assert not [name for name in names if "gate_proj" in name or "norm_q." in name]
    assert "layers.0.self_attn.k_norm_und_for_gen.weight" in names


def test_without_sound_there_is_no_sound_tokenizer_and_the_pipeline_still_runs(tmp_path: Path) -> None:
    pipe = Cosmos3OmniModularPipeline.from_pretrained(write_tiny(tmp_path / "tiny", VARIANTS["no-sound"]))
    pipe.load_components()
    pipe.disable_safety_checker()
    assert not (tmp_path / "tiny/sound_tokenizer").exists()
    assert np.asarray(_run(pipe, num_frames=1).get("videos")).shape == (1, 32, 32, 3)


def test_three_files_hold_the_same_tensors_and_an_index(folder: Path, tmp_path: Path) -> None:
    split = write_tiny(tmp_path / "split", TinyOptions(files=3)) / "transformer"
    index = json.loads((split / "diffusion_pytorch_model.safetensors.index.json").read_text())
    parts = {path.name: load_file(path) for path in split.glob("*.safetensors")}
    whole = load_file(folder / WEIGHTS)
    assert {
        name: parts[file].keys() >= {name} for name, file in index["weight_map"].items()
    } == dict.fromkeys(whole, True)
    assert len(parts) == 3
    assert all(torch.equal(part[name], whole[name]) for part in parts.values() for name in part)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())


def test_time_embedder_stays_float32_in_a_bfloat16_checkpoint(tmp_path: Path) -> None:
    tensors = load_file(write_tiny(tmp_path / "tiny", TinyOptions(dtype="bfloat16")) / WEIGHTS)
    float32 = {name for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    assert float32 == {name for name in tensors if name.startswith("time_embedder.")}


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40), data=st.data())
def test_a_split_keeps_every_tensor_in_order_and_no_file_empty(sizes: list[int], data: st.DataObject) -> None:
    files = data.draw(st.integers(1, len(sizes)))
    parts = split_evenly({str(i): size for i, size in enumerate(sizes)}, files)
    assert len(parts) == files
    assert all(parts)
    assert [name for part in parts for name in part] == [str(i) for i in range(len(sizes))]


def test_all_problems_are_told_at_once_with_their_fix(tmp_path: Path) -> None:
    options = TinyOptions(variant="gelu", layers=0, heads=6, head_dim=5, vocab=3, seed=-1, dtype="int8")
    with pytest.raises(RequestError) as caught:
        write_tiny(tmp_path / "tiny", options)
    rules = {problem.rule for problem in caught.value.problems}
    assert rules == {"choice", "at-least-one", "kv-heads-divide", "head-dim", "vocab", "seed"}
    assert all(problem.fix for problem in caught.value.problems)
    assert "kv_heads=4 does not divide heads=6; use kv_heads 1, 2, 3 or 6" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_norm_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(RequestError, match="no effect"):
        tiny_config(TinyOptions(use_und_k_norm_for_gen=True))


def test_more_files_than_tensors_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="use 1 to 110"):
        write_tiny(tmp_path / "tiny", TinyOptions(files=999))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(KeyboardInterrupt):
            write_tiny(out, TinyOptions(), progress=fail)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_only_an_earlier_checkpoint_is_replaced_and_only_when_forced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/letter.txt").write_text("keep me")
    with pytest.raises(RequestError, match=r"not empty.*--force"):
        write_tiny(folder, TinyOptions())
    with pytest.raises(RequestError, match="replaces only what"):
        write_tiny(tmp_path / "notes", TinyOptions(), force=True)
    with pytest.raises(RequestError, match="not a folder"):
        write_tiny(tmp_path / "notes/letter.txt", TinyOptions(), force=True)
    assert (tmp_path / "notes/letter.txt").read_text() == "keep me"


def test_forced_over_an_earlier_checkpoint_leaves_only_the_new_one(tmp_path: Path) -> None:
    out = write_tiny(tmp_path / "tiny", replace(VARIANTS["vision-only"], layers=1, files=2))
    (out / "extra").write_text("old")
    fresh = write_tiny(tmp_path / "fresh", TinyOptions(layers=1))
    assert dict(_files(write_tiny(out, TinyOptions(layers=1), force=True))) == dict(_files(fresh))


def test_a_folder_that_cannot_be_made_is_a_request_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write"):
        write_tiny(tmp_path / "file/tiny", TinyOptions())
