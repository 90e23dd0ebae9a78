"""`armillary check` as it is typed: tables, documents, exit codes, and how little it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from armillary import plan_for
from armillary.cli import main
from sparse import SUPER, write_sparse

SCRIPT = """
import json, sys, time
from pathlib import Path
from armillary.cli import main
assert main(["check", sys.argv[1], "--tensor-parallel-size", "8", "--json"]) == 0
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
heavy = [name for name in ("torch", "diffusers", "transformers", "numpy") if name in sys.modules]
told = {"heavy": heavy, "seconds": time.process_time(), "kilobytes": int(peak.split()[1])}
print(json.dumps(told), file=sys.stderr)
"""


def _file(folder: Path, text: str) -> str:
    (folder / "plan.json").write_text(text)
    return str(folder / "plan.json")


def test_a_plan_that_fits_is_a_table_and_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "toy-world", "--tensor-parallel-size", "2"]) == 0
    printed = capsys.readouterr().out
    for word in ("layers.*.self_attn.to_q", "armillary.models.cosmos3", "time_embedder", "tp=2: 2 x", "fits"):
        assert word in printed


def test_a_plan_that_does_not_fit_is_exit_code_1_with_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _file(tmp_path, '{"lm_hed": "colwise"}')
    assert main(["check", "toy-world", "--plan", plan, "--tensor-parallel-size", "3"]) == 1
    printed = capsys.readouterr().out
    assert "did you mean lm_head?" in printed
    assert "use tp=1, 2, 4 or 8" in printed


@pytest.mark.parametrize("text", ["{", '{"lm_head": "colwize"}', '{"": "colwise"}', "[]"])
def test_a_file_that_is_no_plan_is_one_line_and_exit_code_2(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "toy-world", "--plan", _file(tmp_path, text)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f"{tmp_path}/plan.json" in line


def test_with_json_stdout_holds_one_document_whatever_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "toy-world", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["check", str(tmp_path), "--json"]) == 2
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["ok"] is False
    assert told["problems"][0]["message"] in printed.err


def test_a_plan_is_printed_edited_and_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "toy-world", "--print-plan"]) == 0
    plan = json.loads(capsys.readouterr().out)
    plan["lm_head"] = None
    assert main(["check", "toy-world", "--json", "--plan", _file(tmp_path, json.dumps(plan))]) == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert "lm_head" not in {rule["key"] for rule in rules}
    assert {rule["source"].partition(":")[0] for rule in rules} == {str(tmp_path / "plan.json")}


def test_a_plan_for_another_class_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _file(tmp_path, json.dumps(plan_for("FluxTransformer2DModel").to_json()))
    assert main(["check", "toy-world", "--plan", plan]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not even nearly" in line


@pytest.mark.parametrize("more", [["toy-world"], ["--tensor-parallel-size", "2"], ["--print-plan"]])
def test_no_flag_beside_all_is_ignored(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--all", *more]) == 2
    assert "--json and nothing else" in capsys.readouterr().err


def test_a_model_or_all_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "name a MODEL" in capsys.readouterr().err


def test_super_is_checked_in_a_moment_with_little_memory_and_without_torch(tmp_path: Path) -> None:
    write_sparse(tmp_path / "transformer", SUPER, files=26)
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, timeout=60)
    measured = json.loads(run.stderr)
    assert len(json.loads(run.stdout)["split"]) == 14 * 64 + 2
    assert measured["heavy"] == []
    assert measured["seconds"] < 3
    assert measured["kilobytes"] < 300_000
