"""`armillary tiny`: the flags reach the checkpoint, mistakes come back as lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from armillary.cli import main


def test_flags_reach_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--variant relu2 --layers 1 --hidden 32 --heads 4 --kv-heads 2 --head-dim 8 --intermediate 48"
    code = main(["tiny", str(tmp_path / "tiny"), *flags.split(), "--no-sound", "--no-action", "--bias"])
    config = json.loads((tmp_path / "tiny/transformer/config.json").read_text())
    assert code == 0
    assert f"wrote {tmp_path / 'tiny'}" in capsys.readouterr().out
    assert (config["hidden_act"], config["num_hidden_layers"], config["hidden_size"]) == ("relu2", 1, 32)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert (config["intermediate_size"], config["attention_bias"]) == (48, True)
    assert (config["sound_gen"], config["action_gen"]) == (False, False)


def test_bad_options_are_one_line_each_and_exit_code_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["tiny", str(tmp_path / "tiny"), "--heads", "6", "--vocab", "3"])
    lines = capfd.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 2
    assert all(line.startswith("error: ") for line in lines)
    assert not (tmp_path / "tiny").exists()


def test_importing_the_verb_imports_neither_torch_nor_diffusers() -> None:
    heavy = "{'torch', 'diffusers', 'transformers'}"
    check = f"import armillary.cli.tiny, sys; sys.exit(bool({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0
