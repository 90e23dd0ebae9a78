"""One server for all tests of this folder that do not kill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server, write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tiny_checkpoint, tmp_path_factory.mktemp("server"))
    server.start()
    try:
        server.await_ready()
        yield server
        assert server.stop() == 0
        assert server.pids() == []
    finally:
        server.kill_everything()
