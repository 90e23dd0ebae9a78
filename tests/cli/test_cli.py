"""The command line as a user meets it: help, verbs, exit codes, one line per problem."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from armillary import ArmillaryError, cli
from armillary.cli import VERBS, main
from armillary.engine.failure import RankError
from armillary.errors import Problem


def _imported_by(*arguments: str) -> set[str]:
    """Names of all modules that a fresh `armillary` with these arguments imports."""
    script = f"import sys; from armillary.cli import main; main({[*arguments]}); print('\\n', *sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Put the error in the place of the verb `tiny`."""

    def tiny() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("armillary.cli.tiny"), "tiny", tiny)


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert [verb for verb in VERBS if verb not in printed] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert VERBS[verb].rstrip(".") in " ".join(capsys.readouterr().out.split())


def test_every_verb_file_is_listed() -> None:
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert files - {"__init__", "options", "foreign"} == set(VERBS)


def test_help_imports_none_of_the_heavy_libraries() -> None:
    assert _imported_by("--help").isdisjoint({"torch", "diffusers", "transformers", "pydantic", "numpy"})


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_imports_neither_torch_nor_diffusers(verb: str) -> None:
    assert _imported_by(verb, "--help").isdisjoint({"torch", "diffusers", "transformers"})


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "armillary 0.1.0\n"


def test_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "armillary", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "armillary 0.1.0\n"


def test_without_a_verb_the_help_is_shown_as_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "generate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["genrate"], "No such command 'genrate'. Did you mean 'generate'?"),
        (["--verson"], "there is no flag --verson; --version, perhaps"),
        (["generate", "--prmpt"], "there is no flag --prmpt; --prompt, perhaps"),
        (["generate", "--steps"], "there is no flag --steps; --num-inference-steps, perhaps"),
        (["generate", "--tp=2"], "there is no flag --tp; --tensor-parallel-size, perhaps"),
        (["tiny", "a", "b"], "unexpected 'b'"),
    ],
)
def test_a_slip_is_one_line(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {problem}; see armillary ")


def test_every_bad_flag_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--layers", "two", "--heads", "many"]) == 2
    first, second, third = sorted(capsys.readouterr().err.splitlines())
    assert "'--heads'" in first
    assert "'--layers'" in second
    assert "Missing argument" in third


def test_problems_are_lines_and_the_error_gives_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, ArmillaryError([Problem("a", "first\n thing", "mend it"), Problem("b", "second")]))
    assert main(["tiny"]) == 2
    assert capsys.readouterr().err == "error: first thing; mend it\nerror: second\n"


def test_a_failed_rank_shows_its_traceback_and_exits_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = Problem("rank-raised", "rank 1 raised ValueError")
    _raising(monkeypatch, RankError(problem, rank=1, traceback="Traceback:\nValueError: seven\n"))
    assert main(["tiny"]) == 4
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "ValueError: seven",
        "error: rank 1 raised ValueError",
    ]


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, KeyboardInterrupt())
    assert main(["tiny"]) == 130


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["tiny"])
