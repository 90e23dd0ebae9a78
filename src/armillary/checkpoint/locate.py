"""From what the user names, a folder or a hub repo, to a folder on this machine."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from armillary.errors import CheckpointError, Problem

SHIPPED = ("toy-world",)
"""Checkpoints that come with the package, by name."""

LONGEST_PATH = 4096
"""Characters; what Linux takes."""


def is_here(checkpoint: str | Path) -> bool:
    """Whether a checkpoint is a folder on this machine (or one that comes with the package)."""
    return (
        len(str(checkpoint)) > LONGEST_PATH
        or Path(checkpoint).expanduser().exists()
        or str(checkpoint) in SHIPPED
    )


def locate_configs(checkpoint: str) -> Path:
    """The JSON files alone of a hub repo: enough to refuse what cannot be, before the weights are fetched.

    Raises:
        CheckpointError: no hub repo that can be reached.
    """
    _refuse_a_path(checkpoint)
    return _from_hub(checkpoint, ["*.json"], None)


def locate(checkpoint: str | Path, subfolder: str | None = None, *, whole: bool = False) -> Path:
    """The local folder of a checkpoint, downloaded or found in the cache if it is a hub repo.

    Of a hub repo only the JSON and safetensors files of `subfolder` (or of its top folder) are fetched,
    and every file of every folder with `whole`. `HF_HUB_OFFLINE` and the hub's cache are honoured.

    A name in `SHIPPED` is a checkpoint that comes with the package, unless there is such a folder here.

    Raises:
        CheckpointError: neither a folder nor a hub repo that can be reached.
    """
    path = Path(checkpoint).expanduser()
    if not str(checkpoint).strip():
        raise _not_found(
            "the checkpoint's name is empty or left out", "name a folder, or a hub repo as owner/name"
        )
    if len(str(checkpoint)) > LONGEST_PATH:
        raise _not_found(f"a path of {len(str(checkpoint))} characters is no folder", "check the path")
    if path.is_dir():
        return _inside(path, subfolder)
    if str(checkpoint) in SHIPPED:
        return _inside(Path(str(files("armillary") / "assets" / str(checkpoint))), subfolder)
    if path.exists():
        raise _not_found(f"{path} is a file, not a folder", f"name the folder it lies in: {path.parent}")
    _refuse_a_path(checkpoint)
    return _inside(_from_hub(str(checkpoint), *patterns(subfolder, whole)), subfolder)


def patterns(subfolder: str | None, whole: bool = False) -> tuple[list[str] | None, list[str] | None]:
    """(allow, ignore) patterns of the hub's file names; there `*` matches slashes too."""
    if whole:
        return None, None
    if subfolder:
        return [f"{subfolder}/*.json", f"{subfolder}/*.safetensors"], [f"{subfolder}/*/*"]
    return ["*.json", "*.safetensors"], ["*/*"]


def _refuse_a_path(checkpoint: str | Path) -> None:
    """What is no repo's name is not asked of the hub."""
    if isinstance(checkpoint, Path) or _looks_like_a_path(checkpoint):
        close = get_close_matches(str(checkpoint), SHIPPED, n=1)
        otherwise = "check the path; a hub repo is named owner/name"
        fix = f"{close[0]} ships with Armillary" if close else otherwise
        raise _not_found(f"there is no folder {Path(checkpoint).expanduser()}", fix)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name or name.count("/") != 1


def _inside(folder: Path, subfolder: str | None) -> Path:
    if not subfolder or (folder / subfolder).is_dir():
        return folder / (subfolder or "")
    there = sorted(path.name for path in folder.iterdir() if path.is_dir())
    fix = f"it has {', '.join(there)}" if there else "it has no subfolders"
    raise _not_found(f"{folder} has no subfolder {subfolder}", fix)


def _from_hub(repo: str, allow: list[str] | None, ignore: list[str] | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=allow, ignore_patterns=ignore))
    except Exception as error:  # network, login, name, disk: to the user all of them mean "not found"
        reason, fix = _in_words(error)
        raise _not_found(f"{repo} was not found: there is no such folder here, and {reason}", fix) from error


def _in_words(error: Exception) -> tuple[str, str]:
    """Why the hub gave nothing, and what helps."""
    from huggingface_hub import errors

    login = "log in with `hf auth login`"
    match error:
        case errors.GatedRepoError():
            return (
                "the owner of that repo wants terms to be accepted first",
                f"accept them on its page, then {login}",
            )
        case errors.RepositoryNotFoundError():
            return "the hub has no such repo, or a private one", f"check the name; for a private repo {login}"
        case errors.HFValidationError():
            return "no repo of the hub can have that name", "name a folder, or a repo as owner/name"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            where = "with HF_HUB_OFFLINE the hub is not asked" if _offline() else "the hub cannot be reached"
            helps = "unset HF_HUB_OFFLINE" if _offline() else "check the network"
            return f"{where}, and its cache on this machine does not have it", f"check the name, or {helps}"
        case OSError(strerror=str(reason)):
            return (
                f"the hub could not be read ({reason})",
                "check the network, and the disk that has the hub's cache",
            )
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"the hub gave {type(error).__name__}: {first_line}", f"check the name and the network; {login}"


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _not_found(what: str, fix: str) -> CheckpointError:
    return CheckpointError(Problem("checkpoint-folder", what, fix))
