"""What a rank tells of its failure, and whose failure came first."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from armillary.engine.failure import RaisedError, RankError, died, exit_code_of, first_failure, written
from armillary.engine.heartbeat import Heartbeat
from armillary.errors import CheckpointError, EngineError, Problem


class OurCheckpointError(CheckpointError):
    """A kind of CheckpointError that `armillary.errors` does not know."""


def caught(error: BaseException, *, waiting: bool = False) -> RaisedError:
    heartbeat = Heartbeat.unshared()
    with pytest.raises(type(error)) as caught, heartbeat.waiting() if waiting else nullcontext():
        raise error
    return RaisedError.of(caught.value, heartbeat.read())


def test_an_error_comes_through_a_file_as_it_was(tmp_path: Path) -> None:
    error = caught(CheckpointError([Problem("rule", "message", "fix")]))
    error.write(tmp_path / "error.json")
    assert RaisedError.read(tmp_path / "error.json") == error


def test_a_rank_that_raised_nothing_has_no_error_file(tmp_path: Path) -> None:
    assert RaisedError.read(tmp_path / "error.json") is None


def test_a_users_mistake_is_raised_as_the_nearest_public_class() -> None:
    error = caught(OurCheckpointError("not a checkpoint")).as_error(1, output="")
    assert type(error) is CheckpointError
    assert str(error) == "not a checkpoint"


def test_an_engine_error_keeps_its_problems_and_gains_the_rank() -> None:
    error = caught(EngineError(Problem("ranks-agree", "they differ", "do not"))).as_error(1, output="")
    assert isinstance(error, RankError)
    assert str(error) == "rank 1: they differ; do not"
    assert "Traceback" in error.traceback


def test_an_error_out_of_a_collective_says_so() -> None:
    error = caught(RuntimeError("closed by peer"), waiting=True).as_error(0, output="")
    assert str(error) == "rank 0 raised in a collective RuntimeError: closed by peer"


def test_exit_codes_tell_mistakes_from_failures() -> None:
    assert [exit_code_of(error) for error in (CheckpointError("a"), EngineError("b"), OSError())] == [2, 4, 4]


def test_the_first_to_raise_is_blamed() -> None:
    first, second = caught(ValueError("first")), caught(ValueError("second"))
    assert first_failure({0: 4, 1: 4}, {0: second, 1: first}) == 1


def test_a_rank_whose_collective_failed_is_not_blamed_for_an_earlier_reading_of_the_clock() -> None:
    victim, culprit = caught(RuntimeError("peer"), waiting=True), caught(ValueError("boom"))
    assert first_failure({0: 4, 1: 4}, {0: victim, 1: culprit}) == 1


def test_gloos_own_words_tell_a_victim_where_no_heartbeat_does() -> None:
    victim = caught(RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] closed by peer"))
    assert first_failure({0: 4, 1: -9}, {0: victim}) == 1


def test_an_abort_after_another_ranks_error_is_not_blamed() -> None:
    assert first_failure({0: -6, 1: 4}, {1: caught(ValueError("boom"))}) == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-9, "rank 2 was killed by SIGKILL (out of memory?)"),
        (-11, "rank 2 was killed by SIGSEGV"),
        (3, "rank 2 ended with exit code 3 before its task was done"),
    ],
)
def test_a_death_without_a_word_is_told_by_its_exit_code(code: int, message: str) -> None:
    assert str(died(2, code, output="")) == message


def test_only_the_end_of_long_output_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntwo\nthree\n")
    assert written(tmp_path / "log", "output", lines=2) == "output:\ntwo\nthree\n"
    assert written(tmp_path / "log", "output") == "output:\none\ntwo\nthree\n"


def test_no_output_has_no_heading(tmp_path: Path) -> None:
    assert written(tmp_path / "log", "output") == ""
