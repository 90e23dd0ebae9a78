"""Ranks that stall or crash: the job is tried again, then fails with the first error; the queue goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from servers import SMALL, Server, eventually

LONG = {"size": "64x64", "num_frames": 5, "num_inference_steps": 900}


def _running(server: Server, video_id: str) -> dict[str, Any]:
    def stepped() -> dict[str, Any] | None:
        video = server.video(video_id)
        return video if (video["step"] or 0) > 0 else None

    return eventually(stepped)


@pytest.mark.timeout(200)
def test_a_job_whose_ranks_fail_twice_fails_with_the_first_error(victim: Server) -> None:
    doomed = victim.post("/v1/videos", prompt="a dog", seed=1, **LONG).json()["id"]
    following = victim.post("/v1/videos", prompt="a cat", seed=1, **SMALL).json()["id"]
    _running(victim, doomed)
    os.kill(victim.part("worker")[-1], signal.SIGSTOP)
    eventually(lambda: victim.get("/health").status_code == 503 or None)
    told = victim.get("/health").json()
    assert told["status"] in ("restarting", "loading")
    eventually(lambda: victim.video(doomed)["attempts"] == 1 or None)
    _running(victim, doomed)
    os.kill(victim.part("worker")[0], signal.SIGSEGV)
    failed = victim.await_status(doomed, "failed")
    assert failed["attempts"] == 2
    assert failed["error"]["code"] == "rank-stalled"
    assert "has not moved for 8 s (--step-timeout), stopped by a signal" in failed["error"]["message"]
    assert victim.get(f"/v1/videos/{doomed}/content").status_code == 422
    assert victim.await_status(following, "completed", "failed")["status"] == "completed"
