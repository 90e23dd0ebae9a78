"""A folder, a repo in the hub's cache, or one clear refusal; nothing here reaches for the network."""

from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub.utils._paths import filter_repo_objects

from armillary.checkpoint.locate import locate, locate_configs, patterns
from armillary.errors import CheckpointError

REPO_FILES = [
    "README.md",
    "config.json",
    "model.safetensors",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors.index.json",
    "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model.bin",
    "transformer/extra/config.json",
    "vae/diffusion_pytorch_model.safetensors",
]


@pytest.fixture
def cached_repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one snapshot of owner/name in it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--owner--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    (snapshot / "transformer").mkdir(parents=True)
    (snapshot / "transformer" / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    return snapshot


@pytest.mark.parametrize(
    ("subfolder", "whole", "wanted"),
    [
        ("transformer", False, REPO_FILES[3:6]),
        (None, False, REPO_FILES[1:3]),
        (None, True, REPO_FILES),
    ],
)
def test_only_what_is_needed_is_fetched(subfolder: str | None, whole: bool, wanted: list[str]) -> None:
    allow, ignore = patterns(subfolder, whole)
    assert [*filter_repo_objects(REPO_FILES, allow_patterns=allow, ignore_patterns=ignore)] == wanted


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    assert locate(str(tmp_path)) == tmp_path
    assert locate(tmp_path, "transformer") == tmp_path / "transformer"


def test_a_missing_subfolder_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    with pytest.raises(CheckpointError, match="has no subfolder transfomer; it has transformer"):
        locate(tmp_path, "transfomer")


@pytest.mark.parametrize(
    "name", ["./owner/name", "/no/folder", "~/no-folder", "no-folder", "a/b/c", "a/", "a\\b"]
)
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"there is no folder .*; check the path"):
        locate(name)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(
        CheckpointError, match=f"is a file, not a folder; name the folder it lies in: {tmp_path}"
    ):
        locate(tmp_path / "x.safetensors")


def test_a_repo_in_the_cache_is_found_offline(cached_repo: Path) -> None:
    assert locate("owner/name", "transformer") == cached_repo / "transformer"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "owner/other",
            "with HF_HUB_OFFLINE the hub is not asked, and its cache on this machine does not have it",
        ),
        ("owner/bad--name", "no repo of the hub can have that name; name a folder, or a repo as owner/name"),
    ],
)
def test_a_repo_that_cannot_be_reached_is_refused_with_the_reason(
    cached_repo: Path, name: str, why: str
) -> None:
    with pytest.raises(
        CheckpointError, match=f"{name} was not found: there is no such folder here, and {why}"
    ):
        locate(name)


def test_a_name_spelt_nearly_like_a_shipped_one_is_answered_with_it() -> None:
    with pytest.raises(CheckpointError, match="there is no folder toyworld; toy-world ships with Armillary"):
        locate("toyworld")


def test_its_configs_alone_are_answered_with_it_too() -> None:
    with pytest.raises(CheckpointError, match="toy-world ships with Armillary"):
        locate_configs("toy-wrld")


def test_a_shipped_checkpoint_is_found_by_its_name() -> None:
    assert (locate("toy-world", "transformer") / "config.json").is_file()


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy-world").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("toy-world") == Path("toy-world")
