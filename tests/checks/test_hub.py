"""A hub repo is checked by its headers, read where they are; the hub here is a folder on loopback."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparse import SUPER, write_headers, write_sparse

REPO, COMMIT = "owner/name", "c" * 40
SMALL = {**SUPER, "num_hidden_layers": 2, "vocab_size": 1000}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as `huggingface_hub` asks for to read JSON files and ranges of others."""

    def __init__(self, folder: Path, sent: dict[str, int], *arguments: Any) -> None:
        self.folder, self.sent = folder, sent
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/"):
            files = {f.relative_to(self.folder).as_posix(): f for f in self.folder.rglob("*") if f.is_file()}
            tree = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": "0"}
                for name, file in files.items()
            ]
            info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._send(json.dumps(tree if "/tree/" in path else info).encode(), body)
            return
        name = path.partition(f"/resolve/{COMMIT}/")[2] or path.partition("/resolve/main/")[2]
        first, _, last = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        with (self.folder / name).open("rb") as file:
            file.seek(int(first))
            content = file.read(int(last) - int(first) + 1 if last else -1)
        self.sent[name] = self.sent.get(name, 0) + len(content) * body
        self._send(content, body, hashlib.sha1(name.encode()).hexdigest())

    def _send(self, content: bytes, body: bool, etag: str = "0") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str], dict[str, int]]]:
    """(the repo's folder, the environment of a user of this hub, bytes sent of each file)."""
    sent: dict[str, int] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tmp_path / "repo", sent))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    yield tmp_path / "repo", environment, sent
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def _check(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "armillary", "check", REPO, "--json", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_headers_of_a_hub_repo_are_read_and_nothing_more(hub: Any) -> None:
    folder, environment, sent = hub
    write_sparse(folder / "transformer", SMALL, files=2)
    run = _check(environment, "--tensor-parallel-size", "2")
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)["bytes_per_rank"]) == 2
    weights = {name: nbytes for name, nbytes in sent.items() if name.endswith(".safetensors")}
    assert len(weights) == 2
    assert max(weights.values()) < 200_000


def test_a_class_that_nobody_describes_is_checked_on_the_hub_too(hub: Any, tmp_path: Path) -> None:
    folder, environment, _ = hub
    layers: dict[str, tuple[int, ...]] = {"blocks.0.w1.weight": (8, 4), "blocks.0.w2.weight": (4, 8)}
    write_headers(folder, {"_class_name": "Stranger"}, layers)
    (tmp_path / "plan.yaml").write_text("blocks.*.w1: colwise\nblocks.*.w2: rowwise\n")
    run = _check(environment, "--plan", str(tmp_path / "plan.yaml"))
    assert run.returncode == 0, run.stderr
    assert {held["name"] for held in json.loads(run.stdout)["split"]} == set(layers)


def test_a_repo_without_weights_is_refused_unless_its_config_tells_all_parameters(hub: Any) -> None:
    folder, environment, _ = hub
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_class_name": "Stranger"}))
    run = _check(environment)
    assert run.returncode == 2
    assert "the header of diffusion_pytorch_model.safetensors of owner/name cannot be read" in run.stderr
