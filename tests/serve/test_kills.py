"""Whatever is killed, no acknowledged job is lost, none changes, and the server comes back."""

from __future__ import annotations

import io
import os
import random
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import av
import httpx
import numpy as np
import pytest
from servers import SMALL, Server, eventually

PARTS = ("worker", "engine_process", "http_process", "supervisor")
SEEDS = (1, 2, 3)
BACK_SECONDS = 20.0
SAME_PICTURE = 6.0
"""Levels of 255 that two encodings of the same frames may differ by on average."""


class Stream:
    """A client that sends job after job and remembers which were acknowledged."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: dict[str, int] = {}
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(0.7):
            seed = SEEDS[len(self.acknowledged) % len(SEEDS)]
            with suppress(httpx.TransportError):
                answer = self._server.post("/v1/videos", prompt="a ball", seed=seed, **SMALL)
                if answer.status_code == 200:
                    self.acknowledged[answer.json()["id"]] = seed

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


def _frames(server: Server, video_id: str) -> np.ndarray[Any, Any]:
    clip = io.BytesIO(server.get(f"/v1/videos/{video_id}/content").content)
    with av.open(clip) as container:
        return np.stack(
            [frame.to_ndarray(format="rgb24").astype(float) for frame in container.decode(video=0)]
        )


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
    first: dict[int, np.ndarray[Any, Any]] = {}
    for video_id, seed in stream.acknowledged.items():
        video = server.await_status(video_id, "completed", "failed")
        assert video["status"] == "completed", video["error"]
        assert server.content(video_id) == server.content(video_id)
        frames = _frames(server, video_id)
        # the ranks make the same frames every time; the encoder's bytes for them may differ a little
        assert np.abs(frames - first.setdefault(seed, frames)).mean() < SAME_PICTURE
    assert np.abs(first[SEEDS[0]] - first[SEEDS[1]]).mean() > SAME_PICTURE
    assert answered < BACK_SECONDS
    return {"answered_s": round(answered, 2), "ready_s": round(ready, 2), "jobs": len(stream.acknowledged)}


@pytest.mark.timeout(240)
def test_no_acknowledged_job_is_lost_to_three_kills(victim: Server) -> None:
    chance = random.Random(7)
    check_kills(victim, chance.sample(PARTS, 3), chance)


@pytest.mark.soak
def test_no_acknowledged_job_is_lost_to_fifty_kills(
    victim: Server, record_property: pytest.FixtureRequest
) -> None:
    chance = random.Random(11)
    for name, figure in check_kills(victim, chance.choices(PARTS, k=50), chance).items():
        record_property(name, figure)  # type: ignore[operator]
