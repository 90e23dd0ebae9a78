"""`armillary generate` as typed: bad input costs one line each, no traceback, and leaves no file."""

from pathlib import Path

import pytest

from armillary.cli import main


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
    assert line.startswith("error: Invalid value for '--step-timeout': -1 is not a number of seconds above 0")


def test_the_help_has_the_flags_of_request_and_layout(capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate", "--help"])
    printed = capsys.readouterr().out
    flags = ["--guidance-interval", "--num-inference-steps", "--tensor-parallel-size", "--allgather-degree"]
    assert [flag for flag in flags if flag not in printed] == []
