"""Whatever is killed, no acknowledged job is lost, none changes, and the server comes back."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

import httpx
import pytest
from servers import SMALL, Server, eventually

PARTS = ("worker", "engine_process", "http_process", "supervisor")
JOBS: tuple[dict[str, Any], ...] = (
    {"seed": 1, **SMALL},
    {"seed": 2, **SMALL},
    {
        "seed": 3,
        **SMALL,
        "size": "256x256",
        "num_frames": 17,
        "num_inference_steps": 2,
    },  # decoded by both ranks
)
BACK_SECONDS = 20.0
"""After a kill the server answers again; where nothing else runs on the machine, its ranks are ready too."""


class Stream:
    """A client that sends job after job and remembers which were acknowledged."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: dict[str, int] = {}
        """The seed of each job."""
        self.delivered: dict[str, str] = {}
        """A digest of what was downloaded of a job while the kills went on."""
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(0.7):
            job = JOBS[len(self.acknowledged) % len(JOBS)]
            with suppress(httpx.HTTPError):
                answer = self._server.post("/v1/videos", prompt="a ball", **job)
                if answer.status_code == 200:
                    self.acknowledged[answer.json()["id"]] = job["seed"]
                self._download()

    def _download(self) -> None:
        """What is ready, once."""
        for video in self._server.get("/v1/videos?order=asc&limit=100").json()["data"]:
            if video["status"] == "completed" and video["id"] not in self.delivered:
                self.delivered[video["id"]] = self._server.content(video["id"])

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def _kill(server: Server, part: str, chance: random.Random) -> None:
    pids = eventually(lambda: server.part(part) or None)
    with suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)
    if part == "supervisor":
        assert server.process is not None, "it was started"
        server.process.wait(30)
        eventually(lambda: not server.pids() or None, BACK_SECONDS)  # all end with it
        server.start()


def _await_answer(server: Server) -> float:
    """Seconds until it answers again."""
    started = time.monotonic()

    def answered() -> bool | None:
        with suppress(httpx.TransportError):
            return server.get("/v1/models").status_code == 200 or None
        return None

    eventually(answered)
    return time.monotonic() - started


def check_kills(server: Server, parts: list[str], chance: random.Random) -> dict[str, float]:
    """Kill these parts one after another under a stream of jobs; the worst times to come back, in seconds."""
    stream, answered, ready = Stream(server), 0.0, 0.0
    try:
        for part in parts:
            time.sleep(chance.uniform(0.2, 2.0))
            started = time.monotonic()
            _kill(server, part, chance)
            answered = max(answered, _await_answer(server))
            server.await_ready()
            ready = max(ready, time.monotonic() - started)
    finally:
        stream.end()
    assert stream.acknowledged, "jobs were accepted between the kills"
    made: dict[int, set[str]] = defaultdict(set)
    for video_id, seed in stream.acknowledged.items():
        video = server.await_status(video_id, "completed", "failed")
        assert video["status"] == "completed", video["error"]
        content = server.content(video_id)
        assert stream.delivered.get(video_id, content) == content
        made[seed].add(content)
    assert stream.delivered, "some were downloaded between the kills"
    assert [len(files) for files in made.values()] == [1] * len(made), "one file of each seed, bit by bit"
    assert len(set().union(*made.values())) == len(made) > 1
    assert answered < BACK_SECONDS
    return {"answered_s": round(answered, 2), "ready_s": round(ready, 2), "jobs": len(stream.acknowledged)}


@pytest.mark.timeout(240)
def test_no_acknowledged_job_is_lost_to_three_kills(victim: Server) -> None:
    chance = random.Random(7)
    check_kills(victim, ["worker", "supervisor", chance.choice(PARTS)], chance)


@pytest.mark.soak
def test_no_acknowledged_job_is_lost_to_fifty_kills(
    victim: Server, record_property: pytest.FixtureRequest
) -> None:
    chance = random.Random(11)
    figures = check_kills(victim, chance.choices(PARTS, k=50), chance)
    for name, figure in figures.items():
        record_property(name, figure)  # type: ignore[operator]
    assert figures["ready_s"] < BACK_SECONDS
