"""A process that is itself a rank: torchrun started it, or its own environment says so."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from armillary.engine.launch import run
from armillary.engine.torchrun import joined_group
from armillary.errors import LayoutError

HERE = Path(__file__).parent


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", **extra}


def free_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


@pytest.fixture
def one_rank() -> dict[str, str]:
    """Torchrun's environment for a group of one."""
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}


def run_in_new_process(task: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = (
        "from armillary.engine.launch import run\n"
        f"run('tasks_for_tests:{task}', {{'folder': '/nonexistent'}}, 1, step_timeout=1, init_timeout=1)"
    )
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, cwd=HERE, env=environment(**env), capture_output=True, text=True, timeout=120
    )


def test_an_ordinary_process_is_no_rank() -> None:
    assert joined_group() is None


def test_two_machines_join_one_group(tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(
        "import os, pathlib\n"
        "from armillary.engine.launch import run\n"
        "result = run('tasks_for_tests:report', {'node': os.environ['GROUP_RANK']}, 2)\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text(str(result['total']))\n"
    )
    group = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *group, f"--node-rank={node}", str(script)],
            env=environment(PYTHONPATH=str(HERE)),
        )
        for node in range(2)
    ]
    try:
        assert [node.wait(timeout=120) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["3.0", "3.0"]


def test_a_layout_of_another_size_is_refused(
    one_rank: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in one_rank.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LayoutError, match="the layout has 4 ranks and the process group 1; give degrees"):
        run("tasks_for_tests:report", {}, 4)


def test_a_rank_that_raises_says_which_it_is(one_rank: dict[str, str]) -> None:
    ended = run_in_new_process("leave_pids_and_sleep", one_rank)
    assert ended.returncode == 1
    assert "RankError: rank 0 raised FileNotFoundError" in ended.stderr


def test_a_rank_that_stalls_says_where_and_ends(one_rank: dict[str, str]) -> None:
    ended = run_in_new_process("sleep_too_long", one_rank)
    assert ended.returncode == 4
    assert "error: rank 0 has not moved for 1 s (--init-timeout), starting" in ended.stderr
    assert "in sleep_too_long" in ended.stderr
