"""Ranks that stall or crash, a store that cannot be written, a checkpoint that is away: the queue goes on."""

from __future__ import annotations

import os
import signal
import sqlite3

import pytest
from servers import SMALL, Server, eventually

LONG = {"size": "64x64", "num_frames": 5, "num_inference_steps": 900}


@pytest.mark.timeout(200)
def test_a_job_whose_ranks_fail_twice_fails_with_the_first_error(victim: Server) -> None:
    doomed = victim.post("/v1/videos", prompt="a dog", seed=1, **LONG).json()["id"]
    following = victim.post("/v1/videos", prompt="a cat", seed=1, **SMALL).json()["id"]
    victim.await_step(doomed)
    os.kill(victim.part("worker")[-1], signal.SIGSTOP)
    eventually(lambda: victim.get("/health").status_code == 503 or None)
    told = victim.get("/health").json()
    assert told["status"] in ("restarting", "loading")
    eventually(lambda: victim.video(doomed)["attempts"] == 1 or None)
    victim.await_step(doomed)
    os.kill(victim.part("worker")[0], signal.SIGSEGV)
    failed = victim.await_status(doomed, "failed")
    assert failed["attempts"] == 2
    assert failed["error"]["code"] == "rank-stalled"
    assert "has not moved for 8 s (--step-timeout), stopped by a signal" in failed["error"]["message"]
    assert victim.get(f"/v1/videos/{doomed}/content").status_code == 422
    assert victim.await_status(following, "completed", "failed")["status"] == "completed"


def _state(server: Server) -> str:
    status: str = server.get("/health").json()["status"]
    return status


@pytest.mark.timeout(120)
def test_a_database_that_somebody_holds_is_waited_for_and_no_job_is_lost(victim: Server) -> None:
    victim.await_ready()
    video_id = victim.post(
        "/v1/videos", prompt="a dog", seed=1, **SMALL | {"num_inference_steps": 200}
    ).json()["id"]
    victim.await_step(video_id)
    holder = sqlite3.connect(victim.data / "jobs.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    eventually(lambda: _state(victim) == "degraded" or None)
    assert "locked" in victim.get("/health").json()["error"]
    holder.close()
    assert victim.await_status(video_id, "completed", "failed")["status"] == "completed"
    eventually(lambda: _state(victim) == "ready" or None)


@pytest.mark.timeout(120)
def test_weights_that_are_away_for_a_moment_do_not_end_a_server_that_was_ready(victim: Server) -> None:
    victim.await_ready()
    (shard, *_) = (victim.checkpoint / "transformer").glob("*.safetensors")
    away = shard.rename(shard.with_suffix(".away"))
    try:
        os.kill(victim.part("engine_process")[0], signal.SIGKILL)
        eventually(lambda: len(victim.events("ranks_restarting")) > 1 or None)
    finally:
        away.rename(shard)
    victim.await_ready()
