"""`armillary verify` as a process: what it prints, and with which code it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

PLANTED = Path(__file__).parents[1] / "proof"
SMALL = [
    "--size",
    "64x64",
    "--num-frames",
    "1",
    "--num-inference-steps",
    "1",
    "--dtype",
    "bfloat16",
    "--json",
]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("cli") / "tiny", TinyOptions(layers=2))


def verify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "armillary", "verify", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(PLANTED)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


def test_a_sound_layout_ends_with_0_and_prints_one_document(checkpoint: Path) -> None:
    done = verify(checkpoint, "--cfg-parallel-size", "2", *SMALL)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["ranks_equal"], told["first_divergence"]) == (True, True, None)
    assert (told["layout"]["cfg"], list(told["outputs"])) == (2, ["latents"])


def test_a_mistake_ends_with_1_and_is_named_in_words(checkpoint: Path) -> None:
    flags = ["--tensor-parallel-size", "2", "--after-load", "planted:miss_a_reduce"]
    done = verify(checkpoint / "transformer", *flags)
    assert done.returncode == 1, done.stderr
    assert "first divergence: layers.1.mlp_moe_gen.down_proj" in done.stdout


def test_bad_input_ends_with_2_before_anything_runs(checkpoint: Path) -> None:
    done = verify(checkpoint, "--ring-degree", "2", "--allgather-degree", "2", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ring=2 and gather=2 both split the same keys" in done.stderr


def test_no_model_is_bad_input(checkpoint: Path) -> None:
    done = verify()
    assert done.returncode == 2
    assert "name a MODEL" in done.stderr
