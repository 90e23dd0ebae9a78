"""The job store: nothing acknowledged is lost, whoever ends when."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from armillary.errors import Problem
from armillary.serve.jobs import JobStore, NewJob, QueueFullError

REQUEST = '{"width": 64, "height": 32, "num_frames": 5, "fps": 24.0, "num_inference_steps": 2}'
KILLED = Problem("rank-killed", "rank 1 was killed by SIGKILL")
RAISED = Problem("rank-raised", "rank 0 raised ValueError: seven")


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs.sqlite3")


def _new(*, attached: bool = False, upload: Path | None = None) -> NewJob:
    return NewJob(
        kind="video",
        attached=attached,
        request=REQUEST,
        model="tiny",
        request_id="r",
        suffix=".mp4",
        upload=upload,
    )


def _added(store: JobStore, count: int = 1, *, attached: bool = False) -> list[str]:
    return [job.id for job in store.add([_new(attached=attached) for _ in range(count)], 100)]


def _finish(store: JobStore, job_id: str, output: Path, size: int = 10) -> bool:
    output.write_bytes(bytes(size))
    return store.finish(job_id, output, step_seconds=0.1, run_seconds=1.0)


def test_a_job_is_there_after_the_process_that_stored_it_is_gone(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from armillary.serve.jobs import *;"
        "job = NewJob(kind='video', attached=False, request='{}', model='m', request_id='r', suffix='.mp4');"
        "print(JobStore(Path(sys.argv[1])).add([job], 1)[0].id, flush=True); os._exit(9)"
    )
    path = tmp_path / "jobs.sqlite3"
    told = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    job = JobStore(path).get(told.stdout.strip())
    assert job is not None
    assert job.status == "queued"


def test_jobs_are_claimed_in_the_order_of_their_acceptance(store: JobStore) -> None:
    first, second = _added(store, 2)
    claimed = [job.id for job in (store.claim(), store.claim()) if job]
    assert claimed == [first, second]
    assert store.claim() is None


def test_two_claims_at_once_never_give_the_same_job(store: JobStore) -> None:
    _added(store, 20)
    claimed: list[str] = []

    def claim_all() -> None:
        while (job := store.claim()) is not None:
            claimed.append(job.id)

    threads = [threading.Thread(target=claim_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 20


def test_a_full_queue_takes_all_of_several_jobs_or_none(store: JobStore) -> None:
    store.add([_new()], 3)
    with pytest.raises(QueueFullError, match="1 jobs wait, and at most 3 may"):
        store.add([_new(), _new(), _new()], 3)
    assert store.counts() == {"queued": 1}


def test_a_job_that_fails_is_tried_again_with_its_first_error_kept(store: JobStore) -> None:
    (job_id,) = _added(store)
    store.claim()
    assert store.fail(job_id, RAISED, max_attempts=2) == "queued"
    store.claim()
    assert store.fail(job_id, Problem("rank-stalled", "later"), max_attempts=2) == "failed"
    job = store.get(job_id)
    assert job is not None
    assert (job.status, job.attempts, job.error_code, job.error_message) == (
        "failed",
        2,
        "rank-raised",
        str(RAISED),
    )


def test_a_kill_is_no_attempt_and_keeps_the_place(store: JobStore) -> None:
    first, _ = _added(store, 2)
    store.claim()
    assert store.interrupt(first, KILLED, max_interruptions=5) == "queued"
    job = store.claim()
    assert job is not None
    assert (job.id, job.attempts, job.interruptions) == (first, 0, 1)


def test_a_job_under_which_everything_is_killed_is_given_up(store: JobStore) -> None:
    (job_id,) = _added(store)
    for _ in range(3):
        store.claim()
        status = store.interrupt(job_id, KILLED, max_interruptions=3)
    assert status == "failed"
    job = store.get(job_id)
    assert job is not None
    assert job.status == "failed"


def test_an_orderly_end_interrupts_without_a_count(store: JobStore) -> None:
    (job_id,) = _added(store)
    store.claim()
    store.interrupt(job_id, None, max_interruptions=1)
    job = store.get(job_id)
    assert job is not None
    assert (job.status, job.interruptions) == ("queued", 0)


def test_a_running_job_stays_until_the_ranks_have_let_go(store: JobStore, tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.touch()
    (job,) = store.add([_new(upload=upload)], 1)
    store.claim()
    removed = store.remove(job.id)
    assert removed is not None
    assert (removed.status, upload.exists()) == ("cancelled", True)
    store.let_go(job.id)
    assert (store.get(job.id), upload.exists()) == (None, False)


@pytest.mark.parametrize("well", [True, False])
def test_an_upload_is_kept_until_no_run_will_read_it(store: JobStore, tmp_path: Path, well: bool) -> None:
    upload = tmp_path / "upload"
    upload.touch()
    (job,) = store.add([_new(upload=upload)], 1)
    store.claim()
    store.fail(job.id, RAISED, max_attempts=2)
    assert upload.exists()
    store.claim()
    _finish(store, job.id, tmp_path / "out") if well else store.fail(job.id, RAISED, max_attempts=2)
    assert not upload.exists()


def test_a_result_of_a_cancelled_job_is_not_kept(store: JobStore, tmp_path: Path) -> None:
    (job_id,) = _added(store)
    store.claim()
    store.remove(job_id)
    assert not _finish(store, job_id, tmp_path / "out.mp4")
    assert not (tmp_path / "out.mp4").exists()
    assert store.get(job_id) is None


def test_what_an_engine_left_behind_is_found(store: JobStore) -> None:
    running, cancelled, _ = _added(store, 3)
    store.claim(), store.claim()
    store.remove(cancelled)
    assert store.unfinished() == [running, cancelled]


def test_attached_jobs_end_with_the_process_that_their_clients_knew(store: JobStore) -> None:
    _added(store, attached=True)
    (kept,) = _added(store)
    assert len(store.remove_attached()) == 1
    assert [job.id for job in store.everything()] == [kept]


def test_results_expire_by_age_and_by_total_size_oldest_first(store: JobStore, tmp_path: Path) -> None:
    ids = _added(store, 3)
    for job_id in ids:
        store.claim()
        _finish(store, job_id, tmp_path / job_id, size=10)
    assert [job.id for job in store.expire(3600, 25)] == [ids[0]]
    assert not (tmp_path / ids[0]).exists()
    later = max(job.completed_at or 0 for job in store.everything()) + 3601
    assert {job.id for job in store.expire(3600, 25, now=later)} == set(ids[1:])


def test_waiting_jobs_do_not_expire(store: JobStore) -> None:
    _added(store)
    assert store.expire(0.0, 0, now=1e12) == []


def test_pages_go_both_ways_and_leave_out_what_clients_do_not_know(store: JobStore) -> None:
    ids = _added(store, 3)
    _added(store, attached=True)
    page, more = store.page(after=None, limit=2, newest_first=True)
    assert ([job.id for job in page], more) == ([ids[2], ids[1]], True)
    rest, more = store.page(after=ids[1], limit=2, newest_first=True)
    assert ([job.id for job in rest], more) == ([ids[0]], False)
    oldest, _ = store.page(after=ids[0], limit=2, newest_first=False)
    assert [job.id for job in oldest] == ids[1:]
