"""What a proof refuses before anything runs, and what it is made of where nothing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from armillary.errors import ArmillaryError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.proof.case import Case
from armillary.proof.prepare import Asked, prepare

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share.*CPU cores:RuntimeWarning")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("prepare") / "tiny", TinyOptions(layers=2, dtype="bfloat16"))


def case_of(checkpoint: Path, layout: Layout = Layout(), **asked: Any) -> Case:
    return prepare(checkpoint, layout, Asked(**{"request": {}, **asked}))[0]


def refusal(checkpoint: Path, layout: Any = Layout(), **asked: Any) -> str:
    with pytest.raises(ArmillaryError) as refused:
        case_of(checkpoint, layout, **asked)
    return str(refused.value)


def test_a_pipeline_makes_a_short_guided_generation_with_sound_in_its_stored_dtype(checkpoint: Path) -> None:
    case = case_of(checkpoint)
    request = json.loads(case.request or "")
    assert (case.dtype, case.yardstick, case.calls) == ("bfloat16", "bfloat16", 8)
    assert (request["num_inference_steps"], request["sound"], request["seed"]) == (4, True, 0)
    assert request["guidance_scale"] > 1


def test_a_picture_is_asked_for_without_sound(checkpoint: Path) -> None:
    request = json.loads(case_of(checkpoint, request={"num_frames": "1"}).request or "")
    assert (request["mode"], request["sound"]) == ("text-to-image", False)


def test_the_transformers_own_folder_makes_one_forward(checkpoint: Path) -> None:
    case = case_of(checkpoint / "transformer", dtype="float32")
    assert (case.request, case.calls, case.yardstick) == (None, 1, "float64")


def test_a_case_goes_to_the_ranks_and_comes_back_the_same(checkpoint: Path) -> None:
    overrides = {"lm_head": None}
    case = case_of(checkpoint, Layout(cfg=2), overrides=overrides, residency={"evict": "disk"}, layers=1)
    assert Case.from_json(case.to_json()) == case
    assert case.plan is not None
    assert "lm_head" not in json.dumps(case.plan)


def test_layers_cut_what_is_read(checkpoint: Path) -> None:
    index = case_of(checkpoint, layers=1).index()
    assert index.config["num_hidden_layers"] == 1
    assert not any(name.startswith("layers.1.") for name in index.tensors)


def test_the_inputs_of_row_split_layers_are_compared(checkpoint: Path) -> None:
    assert "layers.1.self_attn.to_add_out" in case_of(checkpoint).inputs_of


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layout": Layout(tp=3)}, "use tp=1, 2, 4 or 8"),
        ({"dtype": "float64"}, "use float32, bfloat16 or float16"),
        ({"after_load": "nowhere:f"}, "names no function that can be imported"),
        ({"after_load": "json"}, "package.module:function"),
        ({"inputs": "json:loads"}, "the pipeline makes the inputs"),
        ({"request": {"guidance_interval": "400,1000"}}, "knows no guidance_interval"),
        ({"request": {"size": "10x10"}}, "off the pixel grid"),
        ({"layers": 0}, "use 1 or more"),
        ({"overrides": {"lm_haed": None}}, "lm_head"),
    ],
)
def test_what_cannot_be_is_refused(checkpoint: Path, asked: dict[str, Any], words: str) -> None:
    assert words in refusal(checkpoint, **asked)


def test_an_unknown_axis_is_refused_for_a_model_too(checkpoint: Path) -> None:
    assert "'pipe' is no axis" in refusal(checkpoint / "transformer", {"pipe": 2})


def test_a_process_of_torchrun_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert "starts its own ranks" in refusal(checkpoint)


def test_a_class_without_inputs_is_refused_with_what_to_give(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "vae" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = "diffusion_pytorch_model.safetensors"
    (tmp_path / file).symlink_to(checkpoint / "vae" / file)
    assert "no inputs for a forward of AutoencoderKLWan; give --inputs" in refusal(tmp_path)
