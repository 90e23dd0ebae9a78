"""`armillary verify` as a process: what it prints, and with which code it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from custom_model import write

from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

HELPERS = Path(__file__).parent
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
    env = {**os.environ, "PYTHONPATH": str(HELPERS)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


def test_a_sound_layout_ends_with_0_and_prints_one_document(checkpoint: Path) -> None:
    done = verify(checkpoint, "--cfg-parallel-size", "2", *SMALL)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ok"], told["ranks_equal"], told["first_divergence"]) == (True, True, None)
    assert (told["layout"]["cfg"], list(told["outputs"])) == (2, ["latents"])


def test_a_class_of_ones_own_is_proven_by_its_plan_and_a_mistake_ends_with_1(tmp_path: Path) -> None:
    folder = write(tmp_path)
    flags = [
        "--plan",
        str(folder / "plan.json"),
        "--inputs",
        "custom_model:inputs",
        "--tensor-parallel-size",
        "2",
    ]
    done = verify(folder, *flags, "--after-load", "custom_model:change_the_last_layer")
    assert done.returncode == 1, done.stderr
    # nothing before it differs: the heads of an attention that nobody described are told to the ranks
    assert "first divergence: proj_out\n" in done.stdout
    assert "weights      proj_out.weight differs in bits on rank 0, 1" in done.stdout


def test_bad_input_ends_with_2_before_anything_runs(checkpoint: Path) -> None:
    done = verify(checkpoint, "--ring-degree", "2", "--allgather-degree", "2", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ring=2 and gather=2 both split the same keys" in done.stderr


def test_no_model_is_bad_input(checkpoint: Path) -> None:
    done = verify()
    assert done.returncode == 2
    assert "name a MODEL" in done.stderr
