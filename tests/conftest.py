"""What every test stands on: no network, few threads, and one server for all tests of `tests/serve`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servers import Server

# Set before torch or huggingface_hub is imported, here and in every rank that a test starts.
# No test may reach for the network, and a test that tries should fail at once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Ranks share few cores with the reference process; more threads than cores make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from servers import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that its tests leave in peace."""
    from servers import Server

    with _running(Server(tiny_checkpoint, tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture(scope="session")
def victim(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that its tests do not leave in peace."""
    from servers import Server

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
