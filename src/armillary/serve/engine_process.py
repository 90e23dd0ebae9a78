"""The engine process: it starts the ranks, and again when they fail, and gives them one job after another.

`python -m armillary.serve.engine_process RUN_FOLDER PARENT SLOT LINK LOCK`; SLOT is its place in the run's
file of heartbeats. It takes jobs from the store and writes there what became of them; the HTTP process hears
of it over the link. Generation, decoding and encoding are the ranks' work: this process only waits and passes
on.
"""

from __future__ import annotations

import select
import signal
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from armillary.engine.failure import RankError
from armillary.engine.heartbeat import Heartbeat, current_heartbeat, heartbeat_of_this_process
from armillary.engine.wire import Message
from armillary.engine.worker import die_with_parent
from armillary.errors import ArmillaryError, Problem
from armillary.serve.jobs import Job, JobStore
from armillary.serve.link import Link
from armillary.serve.logs import log, log_libraries
from armillary.serve.patience import Patience, StoppedError
from armillary.serve.ranks import Ranks
from armillary.serve.settings import Settings
from armillary.serve.startup import startup_table

_LOOK_SECONDS = 0.5
"""How often the store is looked into when no message comes."""
_MAX_INTERRUPTIONS = 20
"""After as many kills under it a job is taken for their cause: out of memory, most likely."""
_MAX_STARTS = 5
"""How often ranks that were killed before they were ever ready are started again."""
_LONGEST_REST = 30.0
_LOG_SECONDS = 5.0
_TELL_SECONDS = 5.0
"""After which the state is told again: messages may be lost."""
_LONGEST_ERROR = 2000


class Engine:
    """The loop: ranks, store and link."""

    def __init__(self, settings: Settings, store: JobStore, link: Link) -> None:
        self._settings = settings
        self._store = store
        self._link = link
        self._stop = threading.Event()
        self._patiently = Patience(self._stop, self._tell_store)
        self._ranks = Ranks(settings)
        self._ready = False
        self._failures = 0
        self._running: Job | None = None
        self._stopping = False
        self._step = 0
        self._state: Message = {"state": "starting"}
        self._logged = self._told = 0.0

    def stop(self, number: int, _: FrameType | None) -> None:
        self._stop.set()

    def run(self) -> int:
        """Until SIGTERM (0), or until the ranks cannot be started at all (the exit code of the error)."""
        try:
            return self._loop()
        except StoppedError:
            return 0  # the running job is found in progress by the next engine process
        finally:
            self._ranks.end()

    def _loop(self) -> int:
        self._take_over()
        while not self._stop.is_set():
            current_heartbeat().beat()
            select.select([self._link, *self._ranks.waits_on()], [], [], _LOOK_SECONDS)
            for message in self._ranks.messages():
                self._hear(message)
            self._hear_link()
            if self._ranks.over:
                failure = self._ranks.failure
                assert failure is not None, "a group that is over says why"
                self._ranks_failed(failure)
                if self._is_final(failure):
                    return failure.exit_code
                self._start_again(failure)
            self._follow_cancellation()
            self._dispatch()
            if time.monotonic() - self._told > _TELL_SECONDS:
                self._send_state()
        if self._running is not None:
            self._interrupt(self._running.id, None)
        return 0

    # ------------------------------------------------------------------------------------------- the jobs

    def _take_over(self) -> None:
        """What an engine process that was killed left: jobs in progress, and files that are no job's."""
        interrupted = self._patiently(self._store.unfinished)
        killed = Problem("engine-killed", "the engine process was killed while the job ran")
        for job_id in interrupted:
            self._interrupt(job_id, killed)
        jobs = self._patiently(self._store.everything)
        results = {Path(job.output).name for job in jobs if job.output is not None}
        for file in self._settings.results.iterdir():
            if file.name not in results:
                file.unlink(missing_ok=True)
        queued = sum(job.status == "queued" for job in jobs)
        if queued:
            log("jobs_resumed", queued=queued, interrupted=len(interrupted))

    def _dispatch(self) -> None:
        if not self._ready or self._running is not None:
            return
        job = self._patiently(self._store.claim)
        if job is None:
            return
        self._running, self._stopping, self._step = job, False, 0
        output = self._settings.results / f"{job.id}{job.suffix}"
        self._ranks.send({"run": job.id, "request": job.request, "output": str(output)})
        waited = round(time.time() - job.created_at, 3)
        log("job_started", job=job.id, request_id=job.request_id, waited=waited)
        self._tell_job(job.id, "in_progress", step=0, steps=job.fields["num_inference_steps"], waited=waited)

    def _follow_cancellation(self) -> None:
        """A cancelled job ends after the step it is in."""
        if self._running is None or self._stopping:
            return
        if self._patiently(partial(self._store.status, self._running.id)) != "in_progress":
            self._stopping = True
            self._ranks.send({"stop": self._running.id})
            log("job_stopping", job=self._running.id, step=self._step)

    def _hear_link(self) -> None:
        for message in self._link.receive():
            if "ask" in message:
                self._send_state()
                if self._running is not None:
                    self._tell_job(self._running.id, "in_progress")

    # ------------------------------------------------------------------------------------------ the ranks

    def _hear(self, message: Message) -> None:
        event, job = message["event"], self._running
        if event == "loading":
            self._note_loading(message["done"], message["total"])
        elif event == "ready":
            self._is_ready(message)
        elif job is None or message["job"] != job.id:
            log("warning", message=f"the ranks speak of a job that is not theirs: {message}")
        elif event == "step":
            self._step = message["step"]
            self._tell_job(job.id, "in_progress", step=self._step, steps=message["steps"])
        else:
            self._running = None
            self._job_ended(job, message)

    def _note_loading(self, done: int, total: int) -> None:
        self._tell_state("loading", done=done, total=total)
        if time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            log("loading", done=done, total=total)

    def _is_ready(self, message: Message) -> None:
        self._ready, self._failures = True, 0
        self._settings.was_ready.touch()
        memory = {"weights": message["weights"], "memory": message["memory"]}
        self._tell_state("ready", **memory)
        print(startup_table(self._settings, **memory), file=sys.stderr, flush=True)
        log("ready", address=self._settings.address, **memory)

    def _job_ended(self, job: Job, message: Message) -> None:
        about: Message = {"job": job.id, "request_id": job.request_id}
        if message["event"] == "done":
            output = self._settings.results / f"{job.id}{job.suffix}"
            times = {"step_seconds": message["step_seconds"], "run_seconds": message["run_seconds"]}
            kept = self._patiently(partial(self._store.finish, job.id, output, **times))
            # the machine's clock, as in job_accepted: what lies between is the server's share
            first_call = round(message["first_call"], 6)
            log("job_completed" if kept else "job_cancelled", **about, **times, first_call=first_call)
            self._tell_job(job.id, "completed" if kept else "cancelled", **times)
        elif message["event"] == "stopped":
            self._patiently(partial(self._store.let_go, job.id))
            log("job_cancelled", **about, step=message["step"])
            self._tell_job(job.id, "cancelled")
        else:
            self._job_failed(job, Problem("result", message["problem"]))

    def _job_failed(self, job: Job, problem: Problem) -> None:
        most = self._settings.max_attempts
        status = self._patiently(partial(self._store.fail, job.id, problem, max_attempts=most))
        self._goes_on(job.id, status, "job_retried", request_id=job.request_id, error=str(problem))

    def _interrupt(self, job_id: str, problem: Problem | None, **about: Any) -> None:
        ask = partial(self._store.interrupt, job_id, problem, max_interruptions=_MAX_INTERRUPTIONS)
        self._goes_on(job_id, self._patiently(ask), "job_requeued", **about, error=problem and str(problem))

    def _goes_on(self, job_id: str, status: str | None, again: str, **about: Any) -> None:
        """Say what became of a job that did not get to its end: `again` where it waits once more."""
        event = {"queued": again, "failed": "job_failed"}.get(status or "", "job_cancelled")
        log(event, job=job_id, **about)
        self._tell_job(job_id, status or "cancelled")

    def _ranks_failed(self, failure: ArmillaryError) -> None:
        job, self._running, self._ready = self._running, None, False
        log("ranks_failed", error=str(failure), traceback=getattr(failure, "traceback", None) or None)
        self._tell_state("restarting", error=str(failure)[:_LONGEST_ERROR])
        if job is None:
            return
        if isinstance(failure, RankError) and failure.killed:
            self._interrupt(job.id, failure.problems[0], request_id=job.request_id)
        else:
            self._job_failed(job, failure.problems[0])

    def _is_final(self, failure: ArmillaryError) -> bool:
        """Whether ranks that never came up would not come up next time either."""
        self._failures += 1
        killed = isinstance(failure, RankError) and failure.killed
        final = not self._settings.was_ready.exists() and (not killed or self._failures >= _MAX_STARTS)
        if final:
            for problem in failure.problems:
                print(f"error: {problem}", file=sys.stderr, flush=True)
        return final or self._settings.external_ranks

    def _start_again(self, failure: ArmillaryError) -> None:
        self._ranks.end()
        current_heartbeat().beat()
        if self._failures > 1:
            self._stop.wait(min(2.0**self._failures, _LONGEST_REST))
        log("ranks_restarting", failures=self._failures)
        self._ranks = Ranks(self._settings)

    # ----------------------------------------------------------------------------------- to the HTTP process

    def _tell_state(self, state: str, **facts: Any) -> None:
        kept = {"memory", "weights"} & self._state.keys()
        self._state = {**{key: self._state[key] for key in kept}, "state": state, **facts}
        self._send_state()

    def _send_state(self) -> None:
        self._told = time.monotonic()
        self._link.send(self._state)

    def _tell_store(self, waits: str | None) -> None:
        """The store cannot be written for the moment, or can again: nothing is lost, but nothing goes on."""
        if waits is None:
            self._tell_state("ready" if self._ready else "starting")
        else:
            self._tell_state("degraded", error=f"the job store: {waits}")

    def _tell_job(self, job_id: str, status: str, **facts: Any) -> None:
        self._link.send({"job": job_id, "status": status, **facts})


def main(arguments: list[str]) -> int:
    """Exit codes: 0 ended in order, 2 and 4 as the error that keeps the ranks from starting."""
    run = Path(arguments[0])
    parent, slot, link = map(int, arguments[1:4])
    die_with_parent(parent)
    log_libraries()
    settings = Settings.read(run)
    # what this process writes and a power cut takes back is only done again
    engine = Engine(settings, JobStore(settings.database, durable=False), Link.inherited(link))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, engine.stop)
    try:
        with heartbeat_of_this_process(Heartbeat.open(settings.beats, slot)):
            return engine.run()
    except Exception as error:  # a fault of ours: with new processes the queue goes on
        log("engine_failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
