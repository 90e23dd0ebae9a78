"""The same command under torchrun, as on several machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from servers import SMALL, Server, eventually


class Torchrun(Server):
    """Its ranks are torchrun's."""

    @property
    def command(self) -> list[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        return [sys.executable, *torchrun, *super().command[1:]]


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_torchruns_ranks_serve_and_end_together(tiny_checkpoint: Path, tmp_path: Path) -> None:
    server = Torchrun(tiny_checkpoint, tmp_path)
    server.start()
    try:
        server.await_ready()
        video_id = server.post("/v1/videos", prompt="a ball", **SMALL).json()["id"]
        assert server.await_status(video_id, "completed", "failed")["status"] == "completed"
        assert server.process is not None, "it was started"
        server.process.terminate()
        server.process.wait(60)
        eventually(lambda: not server.pids() or None, 20)
    finally:
        server.kill_everything()
