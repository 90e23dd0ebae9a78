"""`armillary serve`: what its command line refuses, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.cli import main
from armillary.cli.foreign import FOREIGN, spelling
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

BASE = ["serve", "nowhere/at-all"]


def _refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main([*BASE, *flags]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, flag in FOREIGN.items() if not flag.so_anyway])
def test_a_flag_of_vllm_is_refused_by_name_with_what_to_use(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [spelling(name)] if FOREIGN[name].metavar is None else [spelling(name), "strange"]
    told = _refused(capsys, *flags)
    assert told.count(f"{spelling(name)} is not honoured; ") == 1
    assert FOREIGN[name].help in told


def test_all_refused_flags_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = _refused(capsys, "--use-hsdp", "--quantization", "fp8", "--max-num-seqs", "4")
    assert told.count("is not honoured") == 3


def test_values_that_say_what_is_so_anyway_pass(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--max-num-seqs", "1", "--enforce-eager", "--cache-backend", "none", "--omni"]
    told = _refused(capsys, *flags, "--model-class-name", "Cosmos3OmniDiffusersPipeline")
    assert "is not honoured" not in told  # the checkpoint, which is nowhere, is what is refused


@pytest.mark.parametrize(
    "layout",
    [
        ["--tensor-parallel-size", "4", "--enable-layerwise-offload"],
        ["--cfg-parallel-size", "2", "--ulysses-degree", "2"],
    ],
)
def test_the_published_commands_are_understood(layout: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--omni", "--model-class-name", "Cosmos3OmniDiffusersPipeline", "--port", "8000"]
    media = ["--allowed-local-media-path", "/", "--init-timeout", "1800"]
    told = _refused(capsys, *common, *media, *layout)
    errors = [line for line in told.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert errors[0].startswith("error: nowhere/at-all was not found")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_beyond_loopback_takes_a_key_or_a_decision(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --api-key or ARMILLARY_API_KEY, or say --no-auth" in _refused(capsys, "--host", host)


def test_a_key_and_no_auth_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert "contradict" in _refused(capsys, "--no-auth", "--api-key", "k")


def test_vllms_key_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert "use ARMILLARY_API_KEY" in _refused(capsys)


def test_as_many_gpus_as_the_degrees_multiply_to(capsys: pytest.CaptureFixture[str]) -> None:
    told = _refused(capsys, "--num-gpus", "8", "--tensor-parallel-size", "4")
    assert "the layout has 4 ranks" in told


def test_another_pipeline_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "WanPipeline is not served" in _refused(capsys, "--model-class-name", "WanPipeline")


def test_every_problem_of_the_command_line_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--tensor-parallel-size", "3", "--host", "0.0.0.0", "--dtype", "float8", "--seed", str(2**63)]
    more = ["--num-gpus", "2", "--use-hsdp", "--served-model-name", "", "--data-dir", "/dev/null/jobs"]
    checkpoint = write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    assert main(["serve", str(checkpoint), *wrong, *more]) == 2
    told = capsys.readouterr().err
    for word in (
        "tp=3 ",
        "--host",
        "float8",
        "seed",
        "--num-gpus",
        "hsdp",
        "--served-model-name",
        "/dev/null",
    ):
        assert word in told


@pytest.mark.parametrize("flag", ["--served-model-name", "--data-dir", "--api-key"])
def test_an_empty_value_is_refused_by_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{flag} is empty" in _refused(capsys, flag, "")


def test_an_empty_checkpoint_is_not_the_folder_one_stands_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ""]) == 2
    assert "the checkpoint's name is empty" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "30s", "nan", "inf"])
def test_a_time_limit_is_seconds_above_0(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a number of seconds above 0, such as 30" in _refused(capsys, "--step-timeout", value)


def test_unknown_flags_are_all_named_with_flags_that_are_honoured(capsys: pytest.CaptureFixture[str]) -> None:
    told = _refused(capsys, "--strange", "1", "--use-hsdpp", "--prot=1")
    assert told.count("there is no flag") == 3
    assert "--port, perhaps" in told
    assert "--use-hsdp," not in told


def test_an_underscore_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cfg=3" in _refused(capsys, "--cfg_parallel_size=3")


def test_an_empty_value_of_vllms_is_not_swallowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--quantization is not honoured" in _refused(capsys, "--quantization=")


def test_degrees_and_checkpoint_are_checked_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    data = tmp_path / "data"
    assert main(["serve", str(checkpoint), "--tensor-parallel-size", "3", "--data-dir", str(data)]) == 2
    assert "tp=3 does not divide" in capsys.readouterr().err
    assert not data.exists()


def test_a_model_given_by_vllms_flag_is_told_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "toy-world"]) == 2
    assert "--model is not honoured; give it as the first word" in capsys.readouterr().err
