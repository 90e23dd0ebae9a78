"""One server for all tests of this folder that leave it in peace, and one for those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import Server, write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with _running(Server(tiny_checkpoint, tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture(scope="session")
def victim(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("victim")
    with _running(Server(tiny_checkpoint, folder, flags=("--step-timeout", "8"))) as server:
        yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        server.await_ready()
        yield server
        assert server.stop() == 0
        assert server.pids() == []
    finally:
        server.kill_everything()
