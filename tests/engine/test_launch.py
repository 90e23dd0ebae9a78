"""Ranks start, are watched and end, whatever happens to one of them or to their parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from armillary.engine.failure import RankError
from armillary.engine.launch import run_ranks
from armillary.errors import CheckpointError

HERE = Path(__file__).parent
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module", autouse=True)
def _tasks_are_importable() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield


@pytest.fixture(scope="module")
def outer_interface() -> str:
    """An interface that ranks must not listen on, where the machine has one."""
    return max((name for _, name in socket.if_nameindex() if name != "lo"), default="lo")


@pytest.fixture(scope="module")
def report(outer_interface: str) -> Any:
    env = {"GLOO_SOCKET_IFNAME": outer_interface, "OMP_NUM_THREADS": "1"}
    return run_ranks("tasks_for_tests:report", {"one": [1, None]}, 2, env=env)


def test_rank_0_hands_back_what_the_ranks_made_together(report: Any) -> None:
    assert report["total"] == 3.0


def test_the_payload_reaches_the_task(report: Any) -> None:
    assert report["payload"] == {"one": [1, None]}


def test_ranks_take_the_environment_they_are_given(report: Any) -> None:
    assert [rank["threads"] for rank in report["ranks"]] == [1, 1]


def test_ranks_listen_on_loopback_only(report: Any) -> None:
    addresses = [address for rank in report["ranks"] for address in rank["listens_on"]]
    assert set(addresses) <= LOOPBACK
    assert len(addresses) >= 2, "each rank listens for the others"


@pytest.fixture
def fail(tmp_path: Path) -> Callable[[str], tuple[Exception, float]]:
    """Let rank 1 fail in some way: the error that is raised for it, and the seconds from failure to error."""

    def run(way: str) -> tuple[Exception, float]:
        failed_at = tmp_path / "failed_at"
        with pytest.raises((RankError, CheckpointError)) as caught:
            run_ranks(
                "tasks_for_tests:fail_on_rank_1", {"way": way, "failed_at": str(failed_at)}, 2, step_timeout=3
            )
        return caught.value, time.monotonic() - float(failed_at.read_text())

    return run


Fail = Callable[[str], tuple[Any, float]]


def test_a_rank_that_raises_is_named_with_its_traceback(fail: Fail) -> None:
    error, seconds = fail("raise")
    assert str(error) == "rank 1 raised ValueError: boom"
    assert 'raise ValueError("boom")' in error.traceback
    assert "the last words of rank 1" in error.traceback
    assert (error.rank, error.exit_code) == (1, 4)
    assert seconds < 10


def test_a_users_mistake_comes_back_as_its_own_error(fail: Fail) -> None:
    error, _ = fail("refuse")
    assert type(error) is CheckpointError
    assert [str(problem) for problem in error.problems] == ["a is (2, 3), not (3, 2); fetch it again", "b"]


def test_a_rank_that_is_killed_is_named_with_the_signal(fail: Fail) -> None:
    error, seconds = fail("kill")
    assert str(error) == "rank 1 was killed by SIGKILL (out of memory?)"
    assert seconds < 10


def test_a_rank_that_leaves_early_is_named(fail: Fail) -> None:
    error, _ = fail("leave")
    assert str(error) == "rank 1 ended with exit code 0 before its task was done"


def test_a_rank_that_sleeps_is_named_with_where_it_stands(fail: Fail) -> None:
    error, seconds = fail("sleep")
    assert "rank 1 has not moved for 3 s (--step-timeout), computing, step 2 of 5" in str(error)
    assert "in sleep_too_long" in error.traceback
    assert 3 < seconds < 13


def test_a_stopped_rank_is_named_and_ended(fail: Fail) -> None:
    error, seconds = fail("stop")
    assert "rank 1 has not moved for 3 s (--step-timeout), stopped by a signal" in str(error)
    assert 3 < seconds < 13


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_rank_outlives_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "from armillary.engine.launch import run_ranks\n"
        f"run_ranks('tasks_for_tests:leave_pids_and_sleep', {{'folder': {str(tmp_path)!r}}}, 2)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], cwd=HERE, env=environment) as parent:
        ranks = [int(_wait_for(tmp_path / f"pid-{rank}")) for rank in range(2)]
        parent.send_signal(number)
        assert parent.wait(timeout=10) != 0
    _wait_until(lambda: not any(_is_alive(rank) for rank in ranks), seconds=5)
    if number != signal.SIGKILL:
        assert list(tmp_path.glob("armillary-*")) == []


def _wait_for(path: Path) -> str:
    _wait_until(lambda: path.exists() and path.read_text() != "", seconds=60)
    return path.read_text()


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
