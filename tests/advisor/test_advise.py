"""`armillary advise` as a process: quick, without torch, with exit codes that say what was found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from armillary.cli import main
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

NANO = ["advise", "nvidia/Cosmos3-Nano"]


def test_it_answers_without_torch() -> None:
    script = (
        "import sys; from armillary.cli import main\n"
        "code = main(['advise', 'nvidia/Cosmos3-Super', '--gpus', '8', '--gpu', 'h100-80gb', '--json'])\n"
        "heavy = [name for name in ('torch', 'diffusers', 'transformers') if name in sys.modules]\n"
        "print(heavy, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert json.loads(done.stdout)["layouts"]


def test_the_tables_show_layouts_advice_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NANO, "--gpus", "3", "--gpu", "h100-80gb"]) == 0
    shown = capsys.readouterr().out
    for expected in ("gather=3", "GB a rank", "not possible: tp=3", "Advice", "armillary generate"):
        assert expected in shown


def test_what_does_not_fit_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpus", "1", "--memory-gb", "24", "--evict", "--tensor-parallel-size", "1", "--json"]
    assert main(["advise", "Cosmos3-Super", *flags]) == 3
    told = json.loads(capsys.readouterr().out)
    assert [layout["fits"] for layout in told["layouts"]] == [False]
    assert told["smallest"]["gpus"] == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", "2", "--gpu", "h9000"], "h100-80gb"),
        (["--gpus", "0", "--gpu", "h20"], "use 1 to 1024"),
        (["--gpus", "-2", "--gpu", "h20"], "use 1 to 1024"),
        (["--gpus", "2-", "--gpu", "h20"], "range such as 2-8"),
        (["--gpus", "2", "--gpu", "h20", "--nodes", "0"], "number of machines"),
        (["--gpus", "2", "--gpu", "h20", "--size", "1000x720"], "992x720 or 1008x720"),
        (["--gpus", "2", "--gpu", "h20", "--num-frames", "100"], "97 or 101"),
        (["--gpus", "2", "--gpu", "h20", "--engine", "other"], "vllm-omni"),
        (["--gpus", "2", "--gpu", "h20", "--dtype", "int8"], "bfloat16"),
        (["--gpus", "2"], "--memory-gb"),
    ],
)
def test_bad_input_is_one_clear_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NANO, *flags]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert said in told.err


def test_an_unknown_model_is_answered_with_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "nvidia/Cosmos3-Supper", "--gpus", "1", "--gpu", "h20"]) == 2
    assert "did you mean nvidia/Cosmos3-Super" in capsys.readouterr().err


def test_a_folder_is_read_from_its_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "tiny", TinyOptions(dtype="float32"))
    assert main(["advise", str(tmp_path / "tiny"), "--gpus", "2", "--gpu", "l40s", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["workload"]["dtype"] == "float32"
    assert told["workload"]["size"] == "64x64"


def test_what_cannot_be_answered_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "nope", "--gpus", "1", "--gpu", "l40s", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["layouts"] == []
    assert [problem["rule"] for problem in document["problems"]] == ["model"]


@pytest.mark.parametrize("value", ["1e-300", "1e300", "nan", "-1"])
def test_numbers_that_no_card_has_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["advise", "nvidia/Cosmos3-Nano", "--gpus", "1", "--memory-gb", value, "--tflops", value]) == 2
    )
    assert capsys.readouterr().err.count("is no card's; use 0.01 to 1e+06") == 2


def test_no_command_is_printed_for_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["nvidia/Cosmos3-Super", "--gpus", "4", "--gpu", "rtx-4090", "--tensor-parallel-size", "4"]
    assert main(["advise", *asked, "--no-evict"]) == 3
    printed = capsys.readouterr().out
    assert "generate: none, it does not fit" in printed
    assert "diffusers: none, it does not fit" in printed
