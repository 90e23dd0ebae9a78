"""A real server for the tests: `armillary serve` with two ranks on a tiny checkpoint, started and watched."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
SMALL = {"size": "64x64", "num_frames": 5, "num_inference_steps": 6}
"""A video that takes a fraction of a second."""


def write_checkpoint(folder: Path) -> Path:
    """A tiny checkpoint whose defaults are small, so that a request without any field is quick."""
    from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

    written = write_tiny(folder / "tiny", TinyOptions(layers=2, sound=True))
    defaults = {"size": "64x64", "num_frames": 5, "num_inference_steps": 2}
    (written / "generation_defaults.json").write_text(json.dumps(defaults))
    return written


def eventually(ask: Callable[[], T | None], seconds: float = 60.0) -> T:
    """What `ask` returns once it is not None."""
    deadline = time.monotonic() + seconds
    while (found := ask()) is None:
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)
    return found


@dataclass
class Server:
    """One data folder and port, and the server that runs on them at the moment."""

    checkpoint: Path
    folder: Path
    flags: tuple[str, ...] = ()
    ranks: int = 2
    port: int = field(default_factory=lambda: _free_port())
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def command(self) -> list[str]:
        layout = ["--tensor-parallel-size", str(self.ranks)]
        own = ["--port", str(self.port), "--data-dir", str(self.data), "--served-model-name", "tiny"]
        return [sys.executable, "-m", "armillary", "serve", str(self.checkpoint), *layout, *own, *self.flags]

    def start(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ARMILLARY_TEST": self.token}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def stop(self) -> int:
        """End it in order; the exit code."""
        assert self.process is not None, "it was started"
        self.process.terminate()
        code = self.process.wait(30)
        self.process = None
        return code

    def kill_everything(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)
            self.process = None

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=30)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=fields, timeout=300)

    def await_ready(self, seconds: float = 120.0) -> None:
        def ready() -> bool | None:
            assert self.process is not None, "it was started"
            assert self.process.poll() is None, self.log.read_text()
            with suppress(httpx.TransportError):
                return self.get("/health").status_code == 200 or None
            return None

        eventually(ready, seconds)

    def video(self, video_id: str) -> dict[str, Any]:
        answer = self.get(f"/v1/videos/{video_id}")
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def await_status(self, video_id: str, *statuses: str, seconds: float = 120.0) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            with suppress(httpx.TransportError):
                video = self.video(video_id)
                return video if video["status"] in statuses else None
            return None

        return eventually(reached, seconds)

    def await_step(self, video_id: str, step: int = 1) -> None:
        """Wait until a job that runs has made so many steps."""

        def stepped() -> bool | None:
            video = self.video(video_id)
            assert video["status"] in ("queued", "in_progress"), video
            return (video["step"] or 0) >= step or None

        eventually(stepped)

    def content(self, video_id: str) -> str:
        """A digest of a finished video's file."""
        answer = self.get(f"/v1/videos/{video_id}/content")
        answer.raise_for_status()
        return hashlib.sha256(answer.content).hexdigest()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of the log with this event."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def pids(self) -> list[int]:
        """Every process of this server, by a mark in its environment."""
        return [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if f"ARMILLARY_TEST={self.token}".encode() in _read(process / "environ")
        ]

    def part(self, name: str) -> list[int]:
        """The processes that are one part: supervisor, http_process, engine_process or worker (the ranks)."""
        return [pid for pid in self.pids() if f".{name}".encode() in _read(Path(f"/proc/{pid}/cmdline"))]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
