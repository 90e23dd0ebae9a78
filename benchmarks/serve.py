"""What serving costs beside the generation itself: one rank on core 0, server and client on core 1.

- dispatch: from a job stored to the first call of the transformer, less the same interval of a warm run of
  the same request in this process. Goal: at most 20 ms in the median.
- polls: seconds a step while a client asks for the job's status 200 times a second, over those without it.
  Goal: at most 1.05 in the median.

Prints JSON; `--keep` writes it to benchmarks/results/serve.json. Linux, two cores.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import Goal, provenance, publish, ratios, spread

DISPATCHES, CLIPS, POLLS_PER_SECOND = 30, 10, 200
RANK_CORE, OTHER_CORE = 0, 1
PORT = 8199
SMALL = {"size": "64x64", "num_frames": 5, "num_inference_steps": 2, "prompt": "a ball", "seed": 1}
LONG = SMALL | {"num_inference_steps": 100}


class Client:
    """Keeps one connection."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)

    def ask(self, method: str, path: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if fields is None else json.dumps(fields)
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        return told

    def run(self, fields: dict[str, Any]) -> str:
        """Run a job to its end; its id."""
        job: str = self.ask("POST", "/v1/videos", fields)["id"]
        time.sleep(0.3)
        while self.ask("GET", f"/v1/videos/{job}")["status"] in ("queued", "in_progress"):
            time.sleep(0.1)
        return job


class Polls(threading.Thread):
    """Asks for the status of the running job, so many times a second."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self.over = threading.Event()
        self.made = 0
        self._path = f"/v1/videos/{job}"

    def run(self) -> None:
        client, due = Client(), time.monotonic()
        while not self.over.is_set():
            client.ask("GET", self._path)
            self.made += 1
            due += 1 / POLLS_PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def served(checkpoint: Path, folder: Path) -> Iterator[Path]:
    """A server with its rank on its own core; gives its log."""
    log = folder / "log"
    command = ["taskset", "-c", str(OTHER_CORE), sys.executable, "-m", "armillary", "serve", str(checkpoint)]
    flags = ["--port", str(PORT), "--data-dir", str(folder / "data")]
    with log.open("wb") as file:
        server = subprocess.Popen([*command, *flags], stdout=file, stderr=file)
    try:
        _await_ready(server, log)
        _pin_ranks(server.pid)
        yield log
    finally:
        server.terminate()
        server.wait(30)


def _await_ready(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while '"event": "ready"' not in log.read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(log.read_text())
        time.sleep(0.2)


def _pin_ranks(supervisor: int) -> None:
    """Ranks are the only grandchildren."""
    for child in _children(supervisor):
        for rank in _children(child):
            for thread in Path(f"/proc/{rank}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {RANK_CORE})


def _children(pid: int) -> list[int]:
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for line in found for child in line.split()]


class Warm:
    """The same checkpoint, loaded in this process."""

    def __init__(self, checkpoint: Path) -> None:
        import torch

        from armillary.engine.heartbeat import Heartbeat
        from armillary.engine.prepare import prepare
        from armillary.engine.resident import Resident, mesh_of
        from armillary.engine.worker import Rank

        torch.set_num_threads(1)
        job = prepare(SMALL, checkpoint, {})
        payload = job.payload(Path("unused"))
        self._request = job.request
        self._rank = Rank(0, 0, 1, torch.device("cpu"), Heartbeat.unshared())
        self._resident = Resident.load(payload, job.request, self._rank, mesh_of(payload))

    def until_first_call(self) -> float:
        os.sched_setaffinity(0, {RANK_CORE})
        started = time.monotonic()
        made = self._resident.run(self._request, self._rank, lambda _: None)
        os.sched_setaffinity(0, {OTHER_CORE})
        return made.first_call - started


def measure_dispatch(log: Path, client: Client, warm: Warm) -> dict[str, Any]:
    within, through = [], []
    for turn in range(-3, DISPATCHES):
        alone = warm.until_first_call()
        job = client.run(SMALL)
        accepted, completed = _event(log, "job_accepted", job), _event(log, "job_completed", job)
        if turn >= 0:
            within.append(alone)
            through.append(completed["first_call"] - accepted["clock"])
    extra = statistics.median(through) - statistics.median(within)
    return {
        "in_process_s": spread(within),
        "served_s": spread(through),
        "goal_s": Goal(0.020, extra).told(),
    }


def measure_polls(log: Path, client: Client) -> dict[str, Any]:
    times: dict[bool, list[float]] = {False: [], True: []}
    rates = []
    for turn in range(-1, CLIPS):
        for polled in (turn % 2 == 0, turn % 2 == 1):
            job: str = client.ask("POST", "/v1/videos", LONG)["id"]
            polls, started = Polls(job), time.monotonic()
            if polled:
                polls.start()
            ended = _event(log, "job_completed", job)
            if polled:
                polls.over.set()
                polls.join()
                rates.append(polls.made / (time.monotonic() - started))
            if turn >= 0:
                times[polled].append(ended["step_seconds"])
    compared = ratios(times[True], times[False])
    return {
        "step_s": {"polled": spread(times[True]), "alone": spread(times[False])},
        "polls_per_second": round(statistics.median(rates)),
        "ratio": compared,
        "goal": Goal(1.05, compared["median"]).told(),
    }


def _event(log: Path, name: str, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while not (found := _found(log, name, job)):
        if time.monotonic() > deadline or _found(log, "job_failed", job):
            raise SystemExit(f"{job}: no {name}\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    return found


def _found(log: Path, name: str, job: str) -> dict[str, Any] | None:
    for line in log.read_text().splitlines():
        if job in line and f'"event": "{name}"' in line:
            event: dict[str, Any] = json.loads(line)
            return event
    return None


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint = write_tiny(folder / "tiny", TinyOptions(layers=4))
        os.sched_setaffinity(0, {OTHER_CORE})
        with served(checkpoint, folder) as log:
            client = Client()
            dispatch = measure_dispatch(log, client, Warm(checkpoint))
            polls = measure_polls(log, client)
    publish("serve", {**provenance(), "dispatch": dispatch, "polls": polls}, keep="--keep" in sys.argv)


if __name__ == "__main__":
    main()
