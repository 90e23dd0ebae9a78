"""The researcher's road: the example script under torchrun, and what it makes in one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from armillary.models.cosmos3.tiny import VARIANTS, write_tiny

EXAMPLE = Path(__file__).parents[2] / "examples/researcher.py"
ARGUMENTS = ["--size", "48x80", "--frames", "5", "--steps", "4", "--dtype", "float32"]
# one start of the ranks for both ways to say the degree; the second load uses the first one's process group
TWICE = f"""
import runpy, sys
for output, flags in (("layout.npz", []), ("config.npz", ["--diffusers-config"])):
    sys.argv = ["researcher.py", "tiny", output, *{ARGUMENTS}, *flags]
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def run(folder: Path, *command: str) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.timeout(600)
def test_the_script_on_two_ranks_makes_what_it_makes_in_one_process(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny", VARIANTS["silu-bias"])
    (tmp_path / "twice.py").write_text(TWICE)
    group = ["--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    run(tmp_path, "-m", "torch.distributed.run", *group, "twice.py")
    run(tmp_path, str(EXAMPLE), "tiny", "one.npz", *ARGUMENTS)
    one, layout, config = (np.load(tmp_path / f"{name}.npz") for name in ("one", "layout", "config"))
    assert np.array_equal(layout["latents"], config["latents"])
    assert np.linalg.norm(layout["latents"] - one["latents"]) <= 1e-5 * np.linalg.norm(one["latents"])
    assert np.abs(layout["frames"].astype(int) - one["frames"]).max() <= 1
    assert one["frames"].shape == (5, 80, 48, 3)
