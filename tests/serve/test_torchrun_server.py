"""The same command under torchrun, as on several machines."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import PIL.Image
import pytest
from servers import Server, eventually

LONG = {"size": "64x64", "num_frames": 5, "num_inference_steps": 200}


class Torchrun(Server):
    """Its ranks are torchrun's."""

    @property
    def command(self) -> list[str]:
        again = ["--max-restarts", "5", "--nproc-per-node", str(self.ranks)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", *again]
        return [sys.executable, *torchrun, *super().command[1:]]

    def rank(self, number: int) -> int:
        """The process of a rank; the server's own are children of the first."""
        mark = f"RANK={number}".encode()
        (pid,) = (
            pid for pid in self.pids() if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
        return pid

    def running(self) -> str:
        """The id of a long job in its first steps."""
        video_id: str = self.post("/v1/videos", prompt="a ball", seed=1, **LONG).json()["id"]
        self.await_step(video_id)
        return video_id


@pytest.fixture(scope="module")
def torchrun(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Torchrun]:
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "tmp").mkdir()
    flags = ("--max-attempts", "1")
    server = Torchrun(tiny_checkpoint, folder, flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        server.start()
    try:
        server.await_ready()
        yield server
        assert server.process is not None, "it was started"
        server.process.terminate()
        server.process.wait(60)
        eventually(lambda: not server.pids() or None, 20)
        assert list((folder / "tmp").glob("armillary-*")) == []
    finally:
        server.kill_everything()


@pytest.mark.timeout(200)
def test_a_job_goes_on_after_a_rank_was_killed(torchrun: Torchrun) -> None:
    video_id = torchrun.running()
    os.kill(torchrun.rank(1), signal.SIGKILL)
    ended = torchrun.await_status(video_id, "completed", "failed")
    assert (ended["status"], ended["attempts"]) == ("completed", 0)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_a_job_that_makes_the_ranks_raise_fails_with_their_error(torchrun: Torchrun) -> None:
    torchrun.await_ready()
    first = torchrun.running()
    picture = io.BytesIO()
    PIL.Image.new("RGB", (64, 64)).save(picture, "PNG")
    form = {"prompt": "on", "size": "64x64", "num_frames": "5"}
    answer = httpx.post(f"{torchrun.url}/v1/videos", data=form, files={"input_reference": picture.getvalue()})
    for upload in (torchrun.data / "uploads").iterdir():
        upload.unlink()
    failed = torchrun.await_status(answer.json()["id"], "completed", "failed")
    assert torchrun.video(first)["status"] == "completed"
    assert failed["attempts"] == 1
    assert failed["error"]["code"] == "media-missing"
    torchrun.await_ready()
