"""What the image starts with; `make lint` holds the Dockerfile, which no Docker engine has built here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["vllm", "serve", "MODEL", "--port", "1"], "serve MODEL --port 1"),
        (["serve", "MODEL"], "serve MODEL"),
        (["--model", "MODEL"], "serve --model MODEL"),
    ],
)
def test_commands_for_vllms_images_are_armillarys(tmp_path: Path, words: list[str], run: str) -> None:
    program = tmp_path / "armillary"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ARMILLARY_API_KEY": "given"}
    command = ["sh", str(ENTRYPOINT), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == run


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_the_port_that_the_server_was_given(
    tmp_path: Path, status: int, code: int
) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        (tmp_path / "armillary-serve-x").mkdir()
        settings = json.dumps({"host": "0.0.0.0", "port": server.server_port})
        (tmp_path / "armillary-serve-x" / "settings.json").write_text(settings)
        command = [sys.executable, str(ENTRYPOINT.with_name("healthcheck.py"))]
        done = subprocess.run(command, env={"TMPDIR": str(tmp_path)}, capture_output=True, check=False)
    assert done.returncode == code
