"""A plan in a file of its own, JSON or YAML, read so that every message can name the line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from armillary.errors import PlanError, Problem
from armillary.plan.plan import SECTIONS, refuse_written

LARGEST_FILE = 10_000_000
"""Bytes; a larger file is no plan."""


class PlanFile(dict[str, Any]):
    """The overrides that a file holds, taken wherever overrides are; messages then name file and line.

    `sources` and `context_sources` map each key to the file and line where it stands.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], lines: Mapping[str, Mapping[str, int]]) -> None:
        super().__init__(values)
        self.path = path
        self.sources = {key: f"{path}:{line}" for key, line in lines["tensor"].items()}
        self.context_sources = {key: f"{path}:{line}" for key, line in lines["context"].items()}


def read_plan(path: str | Path) -> PlanFile:
    """Read overrides of a plan from a JSON or YAML file: what `ParallelPlan.to_json` writes, or a part of it,
    in which null removes a key.

    Raises `PlanError` with everything that is wrong with the file: not readable, not JSON or YAML, a key that
    stands twice or is not text, an unknown style; each with its line.
    """
    path = Path(path).expanduser()
    reader = _Reader(path)
    values = reader.values(_compose(path, _text(path)))
    if reader.problems:
        raise PlanError(reader.problems)
    read = PlanFile(path, values, reader.lines)
    refuse_written(read, source=str(path))
    return read


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would never answer
        raise PlanError(Problem("plan-file", f"{path} is no ordinary file", "name a JSON or YAML file"))
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PlanError(Problem("plan-file", f"{path} is too large for a plan", "check the path"))
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlanError(
            Problem("plan-file", f"{path} cannot be read: {error.strerror}", "check the path")
        ) from None
    except UnicodeDecodeError:
        raise PlanError(Problem("plan-file", f"{path} is not text", "write JSON or YAML in UTF-8")) from None


def _compose(path: Path, text: str) -> Any:
    """The text as nodes that know their lines; JSON is read as the YAML that it nearly is."""
    import yaml

    try:
        if path.suffix == ".json":
            json.loads(text)
            text = text.replace("\t", " ")  # allowed between JSON's tokens, and by YAML nowhere
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise PlanError(Problem("plan-file", f"{path} has YAML aliases", "write the entries out"))
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except json.JSONDecodeError as error:
        what = f"{path}:{error.lineno} is not JSON: {error.msg}"
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        what = f"{path}{line} is not YAML: {error.problem or error.context}"
    except RecursionError:
        what = f"{path} is nested too deeply for a plan"
    except (yaml.YAMLError, ValueError) as error:  # Python reads no whole number of thousands of digits
        kind = "JSON" if path.suffix == ".json" else "YAML"
        what = f"{path} is not {kind}: {' '.join(str(error).split())}"
    raise PlanError(Problem("plan-file", what, 'write {"layers.*.mlp.up_proj": "colwise"}')) from None


class _Reader:
    """Makes values of nodes, and notes the line of every key and what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: dict[str, dict[str, int]] = {"tensor": {}, "context": {}}
        self.problems: list[Problem] = []

    def values(self, root: Any) -> dict[str, Any]:
        """The entries of a plan; those of a plan in sections by section."""
        if root is None or root.id != "mapping":
            what = f"{self._path} is not an object of module paths and styles"
            self.problems.append(Problem("plan-form", what, 'write {"layers.*.mlp.up_proj": "colwise"}'))
            return {}
        members = {key.value if key.id == "scalar" else "": value for key, value in root.value}
        if not members.keys() <= {*SECTIONS} or all(node.id != "mapping" for node in members.values()):
            return dict(self._entries(root, self.lines["tensor"]))
        return {
            name: dict(self._entries(node, self.lines[name]))
            if name in self.lines and node.id == "mapping"
            else self._value(node)
            for name, node in members.items()
        }

    def _entries(self, node: Any, lines: dict[str, int]) -> Iterator[tuple[str, Any]]:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:str":
                name = repr(key.value) if key.id == "scalar" else f"({key.id})"
                what = f"{self._path}:{line}: the key {name} is not text"
                self.problems.append(Problem("plan-key", what, "write a dotted path, in quotes if need be"))
            elif key.value in lines:
                what = f"{self._path}:{line}: the key {key.value!r} stands in line {lines[key.value]} already"
                self.problems.append(Problem("key-twice", what, "keep one of them"))
            else:
                lines[key.value] = line
                yield key.value, self._value(value)

    def _value(self, node: Any) -> Any:
        import yaml

        try:
            return yaml.SafeLoader("").construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError) as error:
            what = f"{self._path}:{node.start_mark.line + 1} cannot be read: {' '.join(str(error).split())}"
            self.problems.append(Problem("plan-file", what, "write the name of a style"))
            return None
