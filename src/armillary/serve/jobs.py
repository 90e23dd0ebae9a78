"""The job store: every accepted request in one SQLite file, so that neither a crash nor a restart loses one.

The HTTP process adds jobs and takes them away, the engine process claims and finishes them; both open the
same file. A write is one short transaction that holds the lock from its start (`BEGIN IMMEDIATE`), because
SQLite refuses to let a transaction that began by reading go on to write when another one wrote meanwhile.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Select, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from armillary.errors import Problem
from armillary.serve.settings import SCHEMA

Status = Literal["queued", "in_progress", "cancelled", "completed", "failed"]
"""`cancelled` is a job that the ranks have not let go of yet; after that it is gone."""
Kind = Literal["video", "image"]

_LOCK_SECONDS = 5.0
"""How long a call waits for the lock. Ours are held for milliseconds; somebody else's backup is waited out by
`Patience`, or told to the client."""
UNFINISHED = ("queued", "in_progress", "cancelled")


class _Base(DeclarativeBase):
    pass


class Job(_Base):
    """One accepted request. Times are seconds since 1970."""

    __tablename__ = "jobs"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """The order in which jobs were accepted, and are run."""
    id: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(default="queued", index=True)
    attached: Mapped[bool]
    """A client waits for it on an open connection and knows of no id: without the client, nobody wants it."""
    request: Mapped[str]
    """A `CompleteRequest` as JSON, with its seed: run again, it makes the same."""
    model: Mapped[str]
    """The name by which the client asked for the model."""
    request_id: Mapped[str]
    """Of the HTTP request, for the log."""
    suffix: Mapped[str]
    """Ending of the result's file name."""
    upload: Mapped[str | None]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    completed_at: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=0)
    """How often it has failed by itself."""
    interruptions: Mapped[int] = mapped_column(default=0)
    """How often a process was killed under it, which is not its fault."""
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    output: Mapped[str | None]
    output_bytes: Mapped[int] = mapped_column(default=0)
    step_seconds: Mapped[float | None]
    run_seconds: Mapped[float | None]
    """From the first rank's start on it to the written file."""

    @property
    def fields(self) -> dict[str, Any]:
        """What was asked for, complete."""
        fields: dict[str, Any] = json.loads(self.request)
        return fields

    @property
    def size(self) -> str:
        return "{width}x{height}".format(**self.fields)

    @property
    def length(self) -> float:
        """Seconds of video, from the first frame to the last: 8 for 193 frames at 24 a second."""
        return float(self.fields["num_frames"] - 1) / float(self.fields["fps"])


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A request to be stored."""

    kind: Kind
    attached: bool
    request: str
    model: str
    request_id: str
    suffix: str
    upload: Path | None = None


class QueueFullError(Exception):
    """There are as many waiting jobs as the server takes."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} jobs wait, and at most {limit} may")


class JobStore:
    """The jobs of one data folder. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        """`durable`: what is written survives a power cut, not only the end of every process."""
        self._reading = create_engine(
            URL.create("sqlite", database=str(path)), connect_args={"timeout": _LOCK_SECONDS}
        )
        event.listen(self._reading, "connect", _set_up_durable if durable else _set_up)
        event.listen(self._reading, "begin", _begin)
        self._writing = self._reading.execution_options(begin="BEGIN IMMEDIATE")
        with self._writing.begin() as connection:
            _Base.metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")

    def close(self) -> None:
        self._reading.dispose()

    # ------------------------------------------------------------------------------ by the HTTP process

    def add(self, jobs: Sequence[NewJob], max_queue: int) -> list[Job]:
        """Store jobs, all or none; they are on the disk when this returns.

        Raises QueueFullError where more than `max_queue` would wait.
        """
        with self._write() as session:
            _check_room(session, len(jobs), max_queue)
            stored = [_stored(job) for job in jobs]
            session.add_all(stored)
        return stored

    def check_room(self, max_queue: int) -> None:
        """Raises QueueFullError where not one more job may wait."""
        with self._read() as session:
            _check_room(session, 1, max_queue)

    def get(self, job_id: str) -> Job | None:
        """The job of an id, also a cancelled one that the ranks still hold."""
        with self._read() as session:
            return session.scalar(select(Job).where(Job.id == job_id))

    def page(self, *, after: str | None, limit: int, newest_first: bool) -> tuple[list[Job], bool]:
        """Jobs that clients may list, and whether there are more. Raises KeyError where `after` is gone."""
        order = Job.number.desc() if newest_first else Job.number.asc()
        listed = select(Job).where(~Job.attached, Job.status != "cancelled").order_by(order)
        with self._read() as session:
            if after is not None:
                place = session.scalar(select(Job.number).where(Job.id == after))
                if place is None:
                    raise KeyError(after)
                listed = listed.where(Job.number < place if newest_first else Job.number > place)
            found = list(session.scalars(listed.limit(limit + 1)))
        return found[:limit], len(found) > limit

    def before(self, job: Job) -> list[Job]:
        """The jobs that are run before a queued one, the running one first."""
        ahead = select(Job).where(Job.status.in_(UNFINISHED), Job.number < job.number).order_by(Job.number)
        return self._all(ahead)

    def counts(self) -> dict[str, int]:
        """How many jobs have each status."""
        with self._read() as session:
            rows = session.execute(select(Job.status, func.count()).group_by(Job.status))
            return {row.status: row[1] for row in rows}

    def everything(self) -> list[Job]:
        """All jobs, the oldest first."""
        return self._all(select(Job).order_by(Job.number))

    def completed_lately(self) -> list[Job]:
        """The last completed jobs, the oldest of them first."""
        ended = select(Job).where(Job.status == "completed").order_by(Job.completed_at.desc()).limit(20)
        return self._all(ended)[::-1]

    def remove(self, job_id: str) -> Job | None:
        """Cancel an unfinished job or forget a finished one; None where there is none.

        A running job stays, as `cancelled`, until the engine has let go of its files (`let_go`).
        """
        with self._write() as session:
            job = session.scalar(select(Job).where(Job.id == job_id, Job.status != "cancelled"))
            if job is None:
                return None
            if job.status == "in_progress":
                job.status = "cancelled"
            else:
                session.delete(job)
        if job.status != "cancelled":
            _unlink(job)
        return job

    def remove_attached(self) -> list[Job]:
        """Cancel what only clients of an HTTP process that has ended were waiting for."""
        with self._read() as session:
            ids = list(session.scalars(select(Job.id).where(Job.attached, Job.status != "cancelled")))
        return [job for job_id in ids if (job := self.remove(job_id))]

    def expire(self, max_age: float, max_bytes: int, now: float | None = None) -> list[Job]:
        """Forget finished jobs older than `max_age` seconds, then the oldest until all results together have
        at most `max_bytes`. What a client is waiting for stays."""
        now = time.time() if now is None else now
        ended = select(Job).where(Job.status.in_(("completed", "failed")), ~Job.attached)
        finished = self._all(ended.order_by(Job.completed_at.desc(), Job.number.desc()))
        held, expired = 0, []
        for job in finished:
            held += job.output_bytes
            if held > max_bytes or now - (job.completed_at or now) > max_age:
                expired.append(job)
        for old in expired:
            _unlink(old)  # first: on a full disk nothing can be written before
        return [gone for old in expired if (gone := self.remove(old.id))]

    # ---------------------------------------------------------------------------- by the engine process

    def claim(self) -> Job | None:
        """The next job, from now on in progress."""
        with self._write() as session:
            following = select(Job).where(Job.status == "queued").order_by(Job.number).limit(1)
            job = session.scalar(following)
            if job is not None:
                job.status, job.started_at = "in_progress", time.time()
        return job

    def status(self, job_id: str) -> str | None:
        """The status of a job, None once it is gone."""
        with self._read() as session:
            return session.scalar(select(Job.status).where(Job.id == job_id))

    def finish(self, job_id: str, output: Path, *, step_seconds: float, run_seconds: float) -> bool:
        """A job is done and its result written. False, and nothing is kept, if it was cancelled meanwhile."""
        size = output.stat().st_size

        def done(job: Job) -> None:
            job.status, job.completed_at, job.output, job.output_bytes = "completed", time.time(), None, size
            job.output = str(output)
            job.step_seconds, job.run_seconds = step_seconds, run_seconds
            job.error_code = job.error_message = None

        return self._end(job_id, done, output)

    def fail(self, job_id: str, problem: Problem, *, max_attempts: int) -> str | None:
        """A job failed by itself: run again while it has attempts left. Returns its status, as `status`."""

        def failed(job: Job) -> None:
            job.attempts += 1
            job.error_code = job.error_code or problem.rule
            # the first error is the news; where an upload lies is none of the client's
            said = str(problem).replace(job.upload, "input_reference") if job.upload else str(problem)
            job.error_message = job.error_message or said
            if job.attempts >= max_attempts:
                job.status, job.completed_at = "failed", time.time()
            else:
                job.status, job.started_at = "queued", None

        self._end(job_id, failed)
        return self.status(job_id)

    def interrupt(self, job_id: str, problem: Problem | None, *, max_interruptions: int) -> str | None:
        """The engine ended under a job, which waits again, at its old place; `problem` None: ended in order.
        Killed too often, it has failed. Returns its status, as `status`."""

        def interrupted(job: Job) -> None:
            job.status, job.started_at = "queued", None
            if problem is None:
                return
            job.interruptions += 1
            if job.interruptions >= max_interruptions:
                job.status, job.completed_at = "failed", time.time()
                job.error_code, job.error_message = problem.rule, str(problem)

        self._end(job_id, interrupted)
        return self.status(job_id)

    def unfinished(self) -> list[str]:
        """Jobs that an engine that has ended was running, the oldest first."""
        with self._read() as session:
            running = select(Job.id).where(Job.status.in_(("in_progress", "cancelled")))
            return list(session.scalars(running.order_by(Job.number)))

    def let_go(self, job_id: str) -> None:
        """A cancelled job's work has ended."""
        self._end(job_id, lambda job: None)

    def _end(self, job_id: str, change: Callable[[Job], None], output: Path | None = None) -> bool:
        with self._write() as session:
            job = session.scalar(select(Job).where(Job.id == job_id))
            kept = job is not None and job.status == "in_progress"
            if job is not None and kept:
                change(job)
            elif job is not None and job.status == "cancelled":
                session.delete(job)
        if job is not None and job.status in ("cancelled", "completed", "failed"):
            _unlink_upload(job)  # no run will read it again
        if output is not None and not kept:
            output.unlink(missing_ok=True)
        return kept

    def _all(self, query: Select[Job]) -> list[Job]:
        with self._read() as session:
            return list(session.scalars(query))

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with Session(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session


def _check_room(session: Session, jobs: int, max_queue: int) -> None:
    waiting = session.scalar(select(func.count()).where(Job.status == "queued")) or 0
    if waiting + jobs > max_queue:
        raise QueueFullError(waiting, max_queue)


def _stored(job: NewJob) -> Job:
    return Job(
        id=f"{job.kind}_gen_{secrets.token_hex(16)}",
        kind=job.kind,
        attached=job.attached,
        request=job.request,
        model=job.model,
        request_id=job.request_id,
        suffix=job.suffix,
        upload=str(job.upload) if job.upload else None,
        created_at=time.time(),
    )


def _unlink(job: Job) -> None:
    _unlink_upload(job)
    if job.output is not None:
        Path(job.output).unlink(missing_ok=True)


def _unlink_upload(job: Job) -> None:
    if job.upload is not None:
        Path(job.upload).unlink(missing_ok=True)


def _set_up(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin` says how a transaction begins
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _set_up_durable(connection: Any, _: object) -> None:
    _set_up(connection, _)
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
