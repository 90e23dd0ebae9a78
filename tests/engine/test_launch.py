"""Ranks start, are watched and end, whatever happens to one of them or to their parent."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from armillary.engine.launch import run_ranks
from armillary.errors import ArmillaryError, CheckpointError

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


@dataclass(frozen=True)
class Failed:
    """How a run ended in which rank 1 failed."""

    error: Any
    seconds: float
    """From the failure to the error."""
    left_behind: list[str]
    """Child processes and run folders."""


Fail = Callable[[str], Failed]


@pytest.fixture
def fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Let rank 1 fail in some way, while rank 0 waits for it in a collective."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = set(_children())  # of other tests in this process, such as the server that many share

    def run(way: str) -> Failed:
        payload = {"way": way, "failed_at": str(tmp_path / "failed_at")}
        with pytest.raises(ArmillaryError) as caught:
            run_ranks("tasks_for_tests:fail_on_rank_1", payload, 2, step_timeout=3)
        assert (tmp_path / "failed_at").exists(), f"rank 1 did not come so far: {caught.value}"
        seconds = time.monotonic() - float((tmp_path / "failed_at").read_text())
        left_behind = [*(set(_children()) - others), *map(str, tmp_path.glob("armillary-*"))]
        return Failed(caught.value, seconds, left_behind)

    return run


def test_a_rank_that_raises_is_named_with_its_traceback(fail: Fail) -> None:
    failed = fail("raise")
    assert str(failed.error) == "rank 1 raised ValueError: boom"
    assert 'raise ValueError("boom")' in failed.error.traceback
    assert "the last words of rank 1" in failed.error.traceback
    assert (failed.error.rank, failed.error.exit_code) == (1, 4)
    assert failed.seconds < 10
    assert failed.left_behind == []


def test_a_users_mistake_comes_back_as_its_own_error(fail: Fail) -> None:
    error = fail("refuse").error
    assert type(error) is CheckpointError
    assert [str(problem) for problem in error.problems] == ["a is (2, 3), not (3, 2); fetch it again", "b"]


def test_a_rank_that_is_killed_is_named_with_the_signal(fail: Fail) -> None:
    failed = fail("kill")
    assert str(failed.error) == "rank 1 was killed by SIGKILL (out of memory?)"
    assert failed.seconds < 10


def test_a_rank_that_leaves_early_is_named(fail: Fail) -> None:
    assert str(fail("leave").error) == "rank 1 ended with exit code 0 before its task was done"


def test_a_rank_that_sleeps_is_named_with_where_it_stands(fail: Fail) -> None:
    failed = fail("sleep")
    assert "rank 1 has not moved for 3 s (--step-timeout), computing, step 2 of 5" in str(failed.error)
    assert "in sleep_too_long" in failed.error.traceback
    assert 3 < failed.seconds < 13


def test_a_stopped_rank_is_named_and_ended(fail: Fail) -> None:
    failed = fail("stop")
    assert "rank 1 has not moved for 3 s (--step-timeout), stopped by a signal" in str(failed.error)
    assert 3 < failed.seconds < 13
    assert failed.left_behind == []


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
        _wait_until(lambda: not any(map(_is_alive, ranks)), seconds=10)
        assert parent.wait(timeout=60) != 0
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


def _children() -> list[str]:
    """Process ids of this process's children, those not reaped included."""
    stats = [_fields(pid) for pid in Path("/proc").iterdir() if pid.name.isdecimal()]
    return [pid for pid, _, parent in filter(None, stats) if parent == str(os.getpid())]


def _fields(process: Path) -> tuple[str, str, str] | None:
    """Its id, the letter of its state and its parent's id; None once it is gone."""
    try:
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return process.name, state, parent


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not reaped yet does not."""
    fields = _fields(Path(f"/proc/{pid}"))
    return fields is not None and fields[1] != "Z"
