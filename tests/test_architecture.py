"""ARCHITECTURE.md names every module with one line, and no module that is not there."""

import re
from pathlib import Path

import armillary

ROOT = Path(armillary.__file__).parent
PAGE = ROOT.parents[1] / "ARCHITECTURE.md"
LINE = re.compile(r"^- `([\w/]+\.py)`: (\S.+)$", re.MULTILINE)


def _listed() -> list[str]:
    return [path for path, _ in LINE.findall(PAGE.read_text())]


def _present() -> set[str]:
    modules = {path for path in ROOT.rglob("*.py") if path.name != "__init__.py" or path.read_text().strip()}
    return {path.relative_to(ROOT).as_posix() for path in modules}


def test_every_module_has_a_line() -> None:
    assert sorted(_present() - set(_listed())) == []


def test_every_line_has_a_module() -> None:
    assert sorted(set(_listed()) - _present()) == []


def test_no_module_has_two_lines() -> None:
    assert len(_listed()) == len(set(_listed()))
