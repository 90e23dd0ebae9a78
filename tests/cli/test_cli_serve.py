"""`armillary serve`: what its command line refuses, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.cli import main
from armillary.cli.foreign import FOREIGN
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

BASE = ["serve", "nowhere/at-all"]


def _refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main([*BASE, *flags]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, flag in FOREIGN.items() if not flag.so_anyway])
def test_a_flag_of_vllm_is_refused_by_name_with_what_to_use(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spelling = f"-{name}" if len(name) == 2 else f"--{name.replace('_', '-')}"
    flags = [spelling] if FOREIGN[name].metavar is None else [spelling, "strange"]
    assert f"{spelling} is not honoured: {FOREIGN[name].help}" in _refused(capsys, *flags)


def test_all_refused_flags_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = _refused(capsys, "--use-hsdp", "--quantization", "fp8", "--max-num-seqs", "4")
    assert [line.split()[1] for line in told.splitlines() if "is not honoured" in line] != []
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
    assert errors[0].startswith("error: nowhere/at-all is n")


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


def test_degrees_and_checkpoint_are_checked_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    data = tmp_path / "data"
    assert main(["serve", str(checkpoint), "--tensor-parallel-size", "3", "--data-dir", str(data)]) == 2
    assert "tp=3 does not divide" in capsys.readouterr().err
    assert not data.exists()
