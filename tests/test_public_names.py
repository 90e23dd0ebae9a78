"""The public surface is one list: `armillary._HOME`."""

import ast
import importlib
import inspect

import pytest

import armillary


def _names_for_type_checkers() -> dict[str, str]:
    """Public name -> module, as the `if TYPE_CHECKING:` block of the package says."""
    tree = ast.parse(inspect.getsource(armillary))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def test_names_are_sorted_and_are_what_star_gives() -> None:
    assert list(armillary._HOME) == sorted(armillary._HOME) == armillary.__all__


@pytest.mark.parametrize("name", armillary.__all__)
def test_each_name_is_defined_in_its_home(name: str) -> None:
    home = importlib.import_module(armillary._HOME[name])
    assert getattr(armillary, name) is getattr(home, name)
    assert getattr(home, name).__module__ == armillary._HOME[name]


def test_type_checkers_see_the_same_names() -> None:
    assert _names_for_type_checkers() == armillary._HOME


def test_each_public_name_has_a_docstring() -> None:
    assert [name for name in armillary.__all__ if not inspect.getdoc(getattr(armillary, name))] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'paralelize'"):
        armillary.paralelize  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert set(armillary.__all__) <= set(dir(armillary))
