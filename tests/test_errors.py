"""Every error is a list of problems, each one line that says what to change."""

import pickle

import pytest

from armillary.errors import (
    ArmillaryError,
    CheckpointError,
    EngineError,
    LayoutError,
    PlanError,
    Problem,
    Refusals,
    RequestError,
    list_choices,
)

ONE = Problem("heads-divide", "tp=3 does not divide 64 heads", "use 1, 2 or 4")
TWO = Problem("no-fix", "this is how it is")


def _raise(error: Exception) -> None:
    raise error


def test_a_problem_is_one_line_with_its_fix() -> None:
    assert str(ONE) == "tp=3 does not divide 64 heads; use 1, 2 or 4"
    assert str(TWO) == "this is how it is"
    assert str(Problem("lines", "one\n  two", "three\tfour")) == "one two; three four"


def test_an_error_is_a_line_for_each_problem() -> None:
    error = PlanError([ONE, TWO])
    assert error.problems == (ONE, TWO)
    assert str(error).splitlines() == [str(ONE), str(TWO)]


def test_the_same_problem_is_told_once() -> None:
    assert PlanError([ONE, TWO, ONE]).problems == (ONE, TWO)


def test_a_bare_message_is_a_problem_too() -> None:
    assert EngineError("rank 1 died").problems == (Problem("EngineError", "rank 1 died"),)


def test_an_error_comes_out_of_another_process_as_it_went_in() -> None:
    error = pickle.loads(pickle.dumps(LayoutError([ONE, TWO])))
    assert type(error) is LayoutError
    assert error.problems == (ONE, TWO)


@pytest.mark.parametrize("kind", [PlanError, LayoutError, CheckpointError, RequestError])
def test_a_user_mistake_ends_with_2_and_a_failed_rank_with_4(kind: type[ArmillaryError]) -> None:
    assert kind(ONE).exit_code == 2
    assert EngineError(ONE).exit_code == 4


@pytest.mark.parametrize(
    ("choices", "words"),
    [([], "none"), ([1], "1"), ([1, 2], "1 or 2"), ([1, 2, 4, 8], "1, 2, 4 or 8"), (("a", "b"), "a or b")],
)
def test_choices_are_listed_in_words(choices: list[object], words: str) -> None:
    assert list_choices(choices) == words


def test_refusals_of_one_kind_are_raised_as_that_kind() -> None:
    refusals = Refusals()
    for problem in (ONE, TWO):
        with refusals.collect():
            _raise(LayoutError(problem))
    with pytest.raises(LayoutError) as caught:
        refusals.raise_if_any()
    assert caught.value.problems == (ONE, TWO)


def test_refusals_of_several_kinds_are_all_told_in_one_error() -> None:
    refusals = Refusals()
    refusals.add(RequestError, [ONE])
    with refusals.collect():
        _raise(PlanError(TWO))
    with pytest.raises(ArmillaryError) as caught:
        refusals.raise_if_any()
    assert type(caught.value) is ArmillaryError
    assert caught.value.problems == (ONE, TWO)


def test_without_refusals_nothing_is_raised() -> None:
    refusals = Refusals()
    refusals.add(PlanError, [])
    with refusals.collect():
        pass
    assert not refusals
    refusals.raise_if_any()


@pytest.mark.parametrize("error", [EngineError("rank 1 died"), ValueError("a bug")])
def test_what_is_no_refusal_is_let_out_at_once(error: Exception) -> None:
    with pytest.raises(type(error)), Refusals().collect():
        _raise(error)
