"""Who may import whom, as ARCHITECTURE.md says, held by reading the source and by a fresh interpreter."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import armillary

ROOT = Path(armillary.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}


def _sources(*prefixes: str) -> list[str]:
    return [name for name in SOURCES if name.startswith(prefixes)]


HEAVY = ("torch", "diffusers", "transformers")
PURE = _sources("errors.py", "layout.py", "plan/", "checkpoint/slices.py")
HEAVY_MODELS = ("models/meta.py", "models/noise.py")
# These answer at once, so the heavy imports they need stand inside functions.
LIGHT = [
    *PURE,
    *_sources("__init__.py", "cli/", "checks/", "checkpoint/index.py", "engine/request.py"),
    *(name for name in _sources("models/") if name.count("/") == 1 and name not in HEAVY_MODELS),
    *_sources("models/cosmos3/__init__.py"),
]
COLLECTIVES = {
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
}


def _running_code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield node
            yield from _running_code(node)


def imported(name: str) -> set[str]:
    """Dotted names that the module imports anywhere in it: `from a import b` gives a and a.b."""
    package = ".".join(["armillary", *Path(name).parts[:-1]])
    found: set[str] = set()
    for node in _running_code(ast.parse(SOURCES[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            found.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
    return found


def imports_from(name: str, *packages: str) -> set[str]:
    """What the module imports from these packages."""
    return {
        found
        for found in imported(name)
        if found.startswith(tuple(f"{p}." for p in packages)) or found in packages
    }


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_torch_even_inside_functions(name: str) -> None:
    assert imports_from(name, *HEAVY) == set()


@pytest.mark.parametrize("name", _sources("cli/", "serve/"))
def test_serve_and_cli_import_no_parallel(name: str) -> None:
    assert imports_from(name, "armillary.parallel") == set()


@pytest.mark.parametrize("name", sorted({*SOURCES} - {*_sources("cli/", "__main__.py")}))
def test_nothing_but_the_entry_point_imports_cli(name: str) -> None:
    assert imports_from(name, "armillary.cli") == set()


@pytest.mark.parametrize("name", sorted({*SOURCES} - {"parallel/collectives.py"}))
def test_collectives_are_called_in_one_module(name: str) -> None:
    calls = [node for node in ast.walk(ast.parse(SOURCES[name].read_text())) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    assert called.isdisjoint(
        f"{module}.{name}" for module in ("dist", "torch.distributed") for name in COLLECTIVES
    )
    assert imported(name).isdisjoint(f"torch.distributed.{name}" for name in COLLECTIVES)


@pytest.mark.parametrize("name", SOURCES)
def test_optional_means_the_plan_entry_only(name: str) -> None:
    assert imports_from(name, "typing.Optional") == set()


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_neither_torch_nor_diffusers(name: str) -> None:
    module = ".".join(["armillary", *Path(name).with_suffix("").parts])
    script = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
