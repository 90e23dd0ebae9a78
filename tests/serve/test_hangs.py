"""A process of the server that hangs is killed and started again. There are no ranks here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from offline import settings
from servers import Server, eventually


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hanging")
    server = Server(folder, folder)
    run = folder / "run-folder"
    run.mkdir()
    settings(folder, run=run, port=server.port, external_ranks=True, process_timeout=4.0).write()
    command = [sys.executable, "-m", "armillary.serve.supervisor", str(run)]
    with server.log.open("ab") as log:
        mark = os.environ | {"ARMILLARY_TEST": server.token}
        server.process = subprocess.Popen(command, stdout=log, stderr=log, env=mark)
    try:
        yield server
        assert server.stop() == 0
        assert (server.pids(), run.exists()) == ([], False)
    finally:
        server.kill_everything()


def _is_heard(server: Server) -> bool | None:
    with suppress(httpx.TransportError):
        return server.get("/v1/models").status_code == 200 or None
    return None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", ["http_process", "engine_process"])
def test_a_process_that_hangs_is_started_again(hanging: Server, part: str) -> None:
    eventually(lambda: _is_heard(hanging))
    (stopped,) = eventually(lambda: hanging.part(part) or None)
    os.kill(stopped, signal.SIGSTOP)
    (following,) = eventually(lambda: [pid for pid in hanging.part(part) if pid != stopped] or None)
    assert following != stopped
    assert hanging.events("process_hangs")[-1]["pid"] == stopped
    eventually(lambda: _is_heard(hanging))


@pytest.mark.timeout(120)
def test_results_that_are_no_jobs_are_swept_when_an_engine_process_starts(hanging: Server) -> None:
    (pid,) = eventually(lambda: hanging.part("engine_process") or None)
    left = [hanging.folder / "results" / name for name in ("video_gen_1.mp4", ".video_gen_1.0a0a0a0a.mp4")]
    for file in left:
        file.touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(file.exists() for file in left) or None)
