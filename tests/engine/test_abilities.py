"""What a checkpoint can do, read from its JSON files."""

import json
from pathlib import Path
from typing import Any

import pytest

from armillary.engine.abilities import Abilities, abilities
from armillary.engine.request import GenerationRequest, complete
from armillary.errors import CheckpointError

FILES: dict[str, dict[str, Any]] = {
    "transformer/config.json": {
        "_class_name": "Cosmos3OmniTransformer",
        "hidden_act": "silu",
        "sound_gen": True,
    },
    "vae/config.json": {"scale_factor_spatial": 16, "scale_factor_temporal": 4, "patch_size": 2},
    "sound_tokenizer/config.json": {},
    "modular_model_index.json": {"_class_name": "Cosmos3OmniModularPipeline"},
}


def folder_of(folder: Path, **changes: dict[str, Any]) -> Path:
    for name, config in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(json.dumps(config | changes.get(name.split("/")[0].split(".")[0], {})))
    return folder


def test_abilities_come_from_the_configs(tmp_path: Path) -> None:
    assert abilities(folder_of(tmp_path / "nano")) == Abilities(name="nano", sound=True)


def test_the_published_720p_is_on_the_grid_of_the_published_vae(tmp_path: Path) -> None:
    assert 720 % abilities(folder_of(tmp_path)).spatial_grid == 0


def test_sound_needs_its_tokenizer_beside_the_transformer(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "sound_tokenizer" / "config.json").unlink()
    assert not abilities(tmp_path).sound


def test_relu2_is_of_the_edge_family(tmp_path: Path) -> None:
    assert abilities(folder_of(tmp_path, transformer={"hidden_act": "relu2"})).edge


def test_a_distilled_checkpoint_says_how_many_steps_it_takes(tmp_path: Path) -> None:
    index = {"is_distilled": True, "distilled_sigmas": [1.0, 0.75, 0.5, 0.25]}
    found = abilities(folder_of(tmp_path, modular_model_index=index))
    assert (found.distilled, found.distilled_steps) == (True, 4)


def test_a_cached_checkpoint_is_named_by_its_hub_id(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "models--nvidia--Cosmos3-Nano" / "snapshots" / "0a1b2c")
    assert abilities(folder).name == "nvidia/Cosmos3-Nano"


def test_the_plain_index_serves_where_the_modular_one_is_missing(tmp_path: Path) -> None:
    (folder_of(tmp_path) / "modular_model_index.json").rename(tmp_path / "model_index.json")
    assert not abilities(tmp_path).distilled


def test_every_missing_and_malformed_file_is_reported_at_once(tmp_path: Path) -> None:
    folder_of(tmp_path, vae={"scale_factor_temporal": "four"})
    (tmp_path / "transformer" / "config.json").unlink()
    (tmp_path / "modular_model_index.json").write_text("{")
    with pytest.raises(CheckpointError) as caught:
        abilities(tmp_path)
    lines = str(caught.value).splitlines()
    assert ["transformer/config.json cannot be read" in lines[0], "is not JSON" in lines[1]] == [True, True]
    assert "scale_factor_temporal 'four', not a whole number" in lines[2]


def test_another_model_class_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, transformer={"_class_name": "WanTransformer3DModel"})
    with pytest.raises(CheckpointError, match=r"'WanTransformer3DModel', .* runs Cosmos3OmniTransformer"):
        abilities(tmp_path)


def test_a_distilled_checkpoint_without_its_schedule_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, modular_model_index={"is_distilled": True, "distilled_sigmas": None})
    with pytest.raises(CheckpointError, match="distilled_sigmas None"):
        abilities(tmp_path)


def test_what_is_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        abilities(tmp_path / "nowhere")


def test_a_checkpoint_may_prefer_settings_of_its_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "generation_defaults.json").write_text('{"size": "64x64", "num_frames": 9}')
    request = complete(GenerationRequest(prompt="tea"), abilities(folder))
    assert (request.width, request.num_frames, request.num_inference_steps) == (64, 9, 35)


def test_preferences_that_no_request_has_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "generation_defaults.json").write_text('{"sized": "64x64", "num_frames": "9"}')
    with pytest.raises(CheckpointError, match="'sized'") as caught:
        abilities(folder)
    assert len(caught.value.problems) == 2
