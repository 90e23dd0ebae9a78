"""The tail of a job: decoded by all ranks, encoded by one, and each may fail."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from servers import SMALL, Server, eventually

STEPS = 2
DIVIDED = {"size": "256x256", "num_frames": 17, "num_inference_steps": STEPS}
"""A video that both ranks decode."""


def _decoding(server: Server) -> str:
    """The id of a job whose steps are done."""
    server.await_ready()
    video_id: str = server.post("/v1/videos", prompt="a dog", seed=1, **DIVIDED).json()["id"]
    server.await_step(video_id, STEPS)
    return video_id


@pytest.mark.timeout(120)
def test_a_rank_killed_while_all_decode_is_no_attempt(victim: Server) -> None:
    video_id = _decoding(victim)
    os.kill(victim.part("worker")[-1], signal.SIGKILL)
    ended = victim.await_status(video_id, "completed", "failed")
    assert (ended["status"], ended["attempts"]) == ("completed", 0)
    assert [e["job"] for e in victim.events("job_requeued")][-1] == video_id


@pytest.mark.timeout(120)
def test_a_result_that_cannot_be_written_strands_no_rank(victim: Server) -> None:
    victim.await_ready()
    ready, results = len(victim.events("ready")), victim.data / "results"
    away = results.rename(results.with_name("away"))
    video_id = victim.post("/v1/videos", prompt="a dog", seed=1, **DIVIDED).json()["id"]
    failed = victim.await_status(video_id, "completed", "failed")
    away.rename(results)
    assert failed["error"]["message"] == "the result could not be written (No such file or directory)"
    following = victim.post("/v1/videos", prompt="a cat", seed=1, **SMALL).json()["id"]
    assert victim.await_status(following, "completed", "failed")["status"] == "completed"
    assert len(victim.events("ready")) == ready


@pytest.mark.timeout(120)
def test_a_job_is_cancelled_while_all_decode_and_nothing_is_said_but_that(victim: Server) -> None:
    video_id = _decoding(victim)
    httpx.delete(f"{victim.url}/v1/videos/{video_id}").raise_for_status()
    (event,) = eventually(lambda: [e for e in victim.events("job_cancelled") if e["job"] == video_id] or None)
    assert event["step"] == STEPS
    said = victim.log.read_text()
    assert "Error in block" not in said
    assert "FutureWarning" not in said
