"""Whatever is killed, no acknowledged job is lost, none changes, and the server comes back."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress

import httpx
import pytest
from servers import SMALL, Server, eventually

PARTS = ("worker", "engine_process", "http_process", "supervisor")
SEEDS = (1, 2, 3)
BACK_SECONDS = 20.0


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
        made[seed].add(server.content(video_id))
        assert server.content(video_id) in made[seed]
    assert [len(files) for files in made.values()] == [1] * len(made), "one file of each seed, bit by bit"
    assert len(set().union(*made.values())) == len(made) > 1
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
