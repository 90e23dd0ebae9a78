"""A folder that appears whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from armillary.errors import Problem, RequestError, reason_of
from armillary.models.cosmos3.tiny.parts import INDEX_NAME

MARK = "Written by `armillary tiny`"
"""In the model card of every tiny checkpoint."""


def find_folder_problems(out: Path, force: bool) -> list[Problem]:
    """Why no checkpoint can be put at `out`: something else is there."""
    try:
        if not out.is_dir():
            taken = out.exists() or out.is_symlink()
            return [_folder_problem(f"{out} exists and is not a folder")] if taken else []
        if not any(out.iterdir()):
            return []
    except OSError as error:
        return [_unwritable(out, error)]
    if not force:
        fix = "choose another folder, or replace an earlier checkpoint with --force"
        return [_folder_problem(f"{out} exists and is not empty", fix)]
    card = out / "README.md"
    if not (out / INDEX_NAME).is_file() or MARK not in (card.read_text() if card.is_file() else ""):
        # a published checkpoint has the index too, and nothing of it may be lost
        return [_folder_problem(f"--force replaces only what `armillary tiny` wrote, and {out} is not that")]
    return []


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder whose content becomes `out` when the block succeeds and vanishes when it fails.

    It lies beside a missing `out` and inside an existing one, which may be a mount or have a parent that
    is not ours to write.

    Raises:
        RequestError: the folder cannot be written.
    """
    name = f".{out.name}.{secrets.token_hex(4)}"
    stage = out / name if out.is_dir() else out.with_name(name)
    try:
        stage.mkdir(parents=True)
        yield stage
        _move_into_place(stage, out)
    except OSError as error:
        raise RequestError(_unwritable(out, error)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _move_into_place(stage: Path, out: Path) -> None:
    if stage.parent != out:
        stage.rename(out)
        return
    # An existing folder stays the same folder, because it may be a shell's working directory. What was in
    # it goes into the stage, which is removed afterwards.
    new, old = list(stage.iterdir()), [entry for entry in out.iterdir() if entry != stage]
    replaced = stage / "replaced"
    replaced.mkdir()
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in [
            *((entry, replaced / entry.name) for entry in old),
            *((entry, out / entry.name) for entry in new),
        ]:
            source.rename(target)
            moved.append((source, target))
    except OSError:
        for source, target in reversed(moved):
            target.rename(source)
        raise


def _folder_problem(message: str, fix: str = "choose another folder") -> Problem:
    return Problem("out-folder", message, fix)


def _unwritable(out: Path, error: OSError) -> Problem:
    return Problem("out-writable", f"cannot write {out}: {reason_of(error)}", "choose another folder")
