"""What the HTTP process knows: the job store, what the engine process last said, and who waits for what."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from armillary.serve.jobs import Job, JobStore, NewJob
from armillary.serve.link import Link
from armillary.serve.logs import log
from armillary.serve.metrics import Metrics
from armillary.serve.pace import Pace
from armillary.serve.settings import Settings
from armillary.serve.shapes import Video, video_of

_LOOK_SECONDS = 1.0
"""After which a waiting client's job is looked up although no message came: messages may be lost."""
_SWEEP_SECONDS = 30.0
_UNKNOWN_SECONDS = 60.0
"""Until the queue has room again, where no job has shown how long one takes."""


@dataclass
class Progress:
    """Of the running job."""

    job: str
    step: int
    steps: int
    first: float
    """When its first step had ended."""
    last: float

    @property
    def step_seconds(self) -> float | None:
        return (self.last - self.first) / (self.step - 1) if self.step > 1 else None


class Desk:
    """One per HTTP process. Methods without `async` are for threads; `hear` is called by the event loop."""

    def __init__(self, settings: Settings, store: JobStore, link: Link) -> None:
        self.settings = settings
        self.store = store
        self.metrics = Metrics()
        self.state: dict[str, Any] = {"state": "starting"}
        self.pace = Pace()
        self.started_at = time.time()
        self.link_fileno = link.fileno()
        self._link = link
        self._progress: Progress | None = None
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)

    # ---------------------------------------------------------------------------------- from the engine

    def hear(self) -> None:
        """Take in what the engine process has said."""
        for message in self._link.receive():
            if "state" in message:
                self._hear_state(message)
            else:
                self._hear_job(message)

    def _hear_state(self, state: dict[str, Any]) -> None:
        if state["state"] == "restarting" and self.state["state"] != "restarting":
            self.metrics.restarts.inc()
        self.state = state
        self.metrics.ready.set(self.is_ready)
        for gauge, key in ((self.metrics.memory, "memory"), (self.metrics.weights, "weights")):
            for rank, nbytes in enumerate(state.get(key, ())):
                gauge.labels(rank).set(nbytes)

    def _hear_job(self, message: dict[str, Any]) -> None:
        now, job, status = time.monotonic(), message["job"], message["status"]
        if "step" in message:
            self._note_step(job, message["step"], message["steps"], now)
            if "waited" in message:
                self.metrics.wait_seconds.observe(message["waited"])
        elif status != "in_progress":
            self._progress = None
            if status != "queued":
                self.metrics.ended.labels(status).inc()
            if "run_seconds" in message:
                self.metrics.run_seconds.observe(message["run_seconds"])
        moved = status != "in_progress" or message.get("step") == 0
        for waiting in list(self._waiting) if moved else [job]:  # the others' place in the queue changed
            for event in self._waiting.get(waiting, ()):
                event.set()

    def _note_step(self, job: str, step: int, steps: int, now: float) -> None:
        before = self._progress
        if before is None or before.job != job or step <= 1:
            self._progress = Progress(job, step, steps, now, now)
        else:
            self.metrics.step_seconds.observe(now - before.last)
            self._progress = Progress(job, step, steps, before.first, now)

    @property
    def is_ready(self) -> bool:
        return bool(self.state["state"] == "ready")

    # ------------------------------------------------------------------------------------------- clients

    def accept(self, jobs: Sequence[NewJob], user: str | None = None) -> list[Job]:
        """Store jobs and wake the engine; `user` is the client's word for the log. Raises QueueFullError."""
        stored = self.store.add(jobs, self.settings.max_queue)
        self._link.send({"wake": True})
        for job in stored:
            self.metrics.accepted.labels(job.kind).inc()
            about = {"request_id": job.request_id, "seed": job.fields["seed"]}
            log("job_accepted", job=job.id, **about, user=user, clock=round(time.monotonic(), 6))
        return stored

    def remove(self, job_id: str) -> Job | None:
        """Cancel or forget a job."""
        job = self.store.remove(job_id)
        if job is not None and job.status == "cancelled":
            self._link.send({"stop": job_id})
        return job

    def video(self, job: Job) -> Video:
        """The video object of a job, as of now."""
        self.pace.learn(job)
        progress = self._progress
        running = progress if progress and progress.job == job.id and job.status == "in_progress" else None
        ahead = self.store.before(job) if job.status == "queued" else []
        return video_of(
            job,
            max_age=self.settings.result_max_age,
            step=running.step if running else None,
            position=len(ahead) if job.status == "queued" else None,
            seconds_left=self._seconds_left(job, ahead),
        )

    def _seconds_left(self, job: Job, ahead: Sequence[Job]) -> float | None:
        if job.status not in ("queued", "in_progress"):
            return None
        times = [self._remaining(one) for one in (*ahead, job)]
        return None if None in times else sum(time for time in times if time is not None)

    def _remaining(self, job: Job) -> float | None:
        """Seconds for what is left of one job, by its own pace once it has made two steps."""
        progress = self._progress
        if progress is None or progress.job != job.id:
            return self.pace.remaining(job.fields)
        own = progress.step_seconds
        since = time.monotonic() - progress.last
        if own is None:
            estimate = self.pace.remaining(job.fields, progress.step)
            return None if estimate is None else max(0.0, estimate - since)
        rest = self.pace.remaining(job.fields, progress.steps) or 0.0
        return max(0.0, (progress.steps - progress.step) * own + rest - since)

    def seconds_until_room(self) -> float:
        """When a full queue may have a place again: the running job's time, as far as it is known."""
        progress = self._progress
        job = self.store.get(progress.job) if progress else None
        left = self._remaining(job) if job else None
        return _UNKNOWN_SECONDS if left is None else left

    async def news(self, job_id: str) -> Job | None:
        """The job, once something happened to it, or after a second; None once it is gone."""
        event = asyncio.Event()
        self._waiting[job_id].add(event)
        try:
            await asyncio.wait_for(event.wait(), _LOOK_SECONDS)
        except TimeoutError:
            pass
        finally:
            self._waiting[job_id].discard(event)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
        return await run_in_threadpool(self.store.get, job_id)

    async def until_ended(self, job: Job) -> Job | None:
        """The job once it is completed or failed; None where it was taken away meanwhile."""
        current: Job | None = job
        while current is not None and current.status in ("queued", "in_progress"):
            current = await self.news(job.id)
        if current is None or current.status == "cancelled":
            return None
        self.pace.learn(current)
        return current

    # -------------------------------------------------------------------------------------- housekeeping

    def start(self) -> None:
        """Once, before the first request: what an HTTP process that has ended has left."""
        for job in self.store.remove_attached():
            log("job_cancelled", job=job.id, request_id=job.request_id, reason="the client has gone")
        named = {Path(job.upload).name for job in self.store.everything() if job.upload is not None}
        for file in self.settings.uploads.iterdir():
            if file.name not in named:
                file.unlink(missing_ok=True)
        self._link.send({"ask": True})

    async def keep_house(self) -> None:
        """Expire results and learn how fast jobs run, until cancelled; what fails is tried again."""
        while True:
            try:
                await run_in_threadpool(self._sweep)
            except Exception as error:  # a full disk, a locked store: the next sweep may do it
                log("sweep_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_SWEEP_SECONDS)

    def _sweep(self) -> None:
        settings = self.settings
        for job in self.store.expire(settings.result_max_age, settings.result_max_bytes):
            log("job_expired", job=job.id)
        for job in self.store.completed_lately():
            self.pace.learn(job)

    def count(self) -> None:
        """Bring the gauges of the queue up to date."""
        counts = self.store.counts()
        self.metrics.waiting.set(counts.get("queued", 0))
        self.metrics.running.set(counts.get("in_progress", 0))
