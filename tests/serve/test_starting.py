"""Servers that cannot start say why, and leave nothing running."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from servers import Server


def _ends(server: Server) -> int:
    server.start()
    try:
        assert server.process is not None, "it was started"
        code = server.process.wait(60)
        assert server.pids() == []
        return code
    finally:
        server.kill_everything()


@pytest.mark.timeout(120)
def test_ranks_that_are_not_ready_in_time_end_the_server(tiny_checkpoint: Path, tmp_path: Path) -> None:
    server = Server(tiny_checkpoint, tmp_path, flags=("--init-timeout", "0.2"))
    assert _ends(server) == 4
    assert "has not moved for 0.2 s (--init-timeout)" in server.log.read_text()


@pytest.mark.timeout(120)
def test_a_taken_port_is_bad_input(server: Server, tmp_path: Path) -> None:
    other = replace(server, folder=tmp_path, token="other", process=None)
    assert _ends(other) == 2
    assert f"port {server.port} cannot be opened (Address already in use)" in other.log.read_text()


@pytest.mark.timeout(120)
def test_a_data_folder_has_one_server(server: Server, tmp_path: Path) -> None:
    other = Server(server.checkpoint, tmp_path, flags=("--data-dir", str(server.data)))
    assert _ends(other) == 2
    assert "is in use by another server" in other.log.read_text()


@pytest.mark.timeout(120)
def test_jobs_of_another_version_are_bad_input(tiny_checkpoint: Path, tmp_path: Path) -> None:
    server = Server(tiny_checkpoint, tmp_path)
    server.data.mkdir()
    with closing(sqlite3.connect(server.data / "jobs.sqlite3")) as store:
        store.execute("PRAGMA user_version = 99")
    assert _ends(server) == 2
    assert "was written by another version (schema 99" in server.log.read_text()
