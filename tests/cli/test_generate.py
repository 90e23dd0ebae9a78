"""`armillary generate` as typed: bad input costs one line each, no traceback, and leaves no file."""

from pathlib import Path

import pytest

from armillary.cli import main
from armillary.engine.prepare import prepare
from armillary.layout import Layout
from armillary.plan.file import read_plan


def test_every_wrong_value_of_request_layout_and_checkpoint_has_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--num-frames", "six", "--size", "big", "--tensor-parallel-size", "two"]
    assert main(["generate", str(tmp_path / "none"), "-o", str(tmp_path / "out.mp4"), *flags]) == 2
    printed = capsys.readouterr().err
    named = ["prompt is missing", "size must be", "num_frames must be", "tp='two'", "none"]
    assert [name for name in named if name not in printed] == []
    assert all(line.startswith("error: ") for line in printed.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_below_0_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "--prompt", "tea", "-o", "out.mp4", "--step-timeout", "-1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: Invalid value for '--step-timeout': '-1' is not a number of seconds above 0"
    )


def test_the_help_has_the_flags_of_request_and_layout(capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate", "--help"])
    printed = capsys.readouterr().out
    flags = ["--guidance-interval", "--num-inference-steps", "--tensor-parallel-size", "--allgather-degree"]
    assert [flag for flag in flags if flag not in printed] == []


def test_a_plan_file_is_held_against_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"layers.*.mlp.gate_pro": "colwise"}')
    flags = ["--prompt", "tea", "--plan", str(plan), "-o", str(tmp_path / "out.mp4")]
    assert main(["generate", "toy-world", *flags]) == 2
    assert "layers.*.mlp.gate_pro" in capsys.readouterr().err


def test_a_plan_file_takes_the_place_of_what_is_registered(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("".join(f"layers.*.mlp.{name}_proj: null\n" for name in ("gate", "up", "down")))
    job = prepare({"prompt": "tea"}, "toy-world", Layout(tp=2), overrides=read_plan(plan))
    assert not any(".mlp.down_proj" in name for name in job.resolved.shards)
    assert job.payload(Path("out.mp4"))["plan"] == job.resolved.plan.to_json()
