"""`armillary generate` as typed: bad input costs one line each, no traceback, and leaves no file."""

from pathlib import Path

import pytest

from armillary.cli import main


def test_every_wrong_value_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-frames", "six", "--size", "big", "--tensor-parallel-size", "two", "--step-timeout", "-1"]
    assert main(["generate", "model", "-o", "out.mp4", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [
        "prompt",
        "size",
        "num_frames",
        "tp='two'",
        "--step-timeout",
    ]


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path / "none"), "--prompt", "tea", "-o", str(tmp_path / "out.mp4")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_the_help_has_a_flag_for_every_axis_and_field(capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate", "--help"])
    printed = capsys.readouterr().out
    flags = ["--guidance-interval", "--num-inference-steps", "--tensor-parallel-size", "--allgather-degree"]
    assert [flag for flag in flags if flag not in printed] == []
