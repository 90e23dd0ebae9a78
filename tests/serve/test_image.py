"""What the image starts with; `make lint` holds the Dockerfile, which no Docker engine has built here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "docker" / "entrypoint.sh"
SHOW_KEY = ["sh", "-c", 'printf %s "${ARMILLARY_API_KEY:-}"']


def _started(*words: str, key: str | None = None) -> tuple[str, str]:
    """The key that the server would find, and what was printed."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"ARMILLARY_API_KEY": key} if key else {}
    command = ["sh", str(ENTRYPOINT), *SHOW_KEY, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_without_a_key_one_is_made_and_printed_once() -> None:
    key, printed = _started("armillary", "serve", "MODEL")
    assert len(key) >= 32
    assert printed.count(key) == 1


def test_every_run_has_a_key_of_its_own() -> None:
    assert _started("serve")[0] != _started("serve")[0]


def test_a_given_key_is_kept_and_not_printed() -> None:
    assert _started("serve", key="given") == ("given", "")


@pytest.mark.parametrize("word", ["--api-key=mine", "--no-auth"])
def test_a_decision_on_the_command_line_stands(word: str) -> None:
    assert _started("serve", word) == ("", "")


def test_other_verbs_need_no_key() -> None:
    assert _started("generate") == ("", "")
