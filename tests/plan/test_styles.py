"""Styles: every form in which one may be written, and what is refused."""

import pytest

from armillary import Colwise, Optional, PackedColwise, PackedRowwise, PlanError, Rowwise, VocabSplit
from armillary.plan.styles import Entry, Style, entry_to_json, parse_entry, parse_style

ENTRIES = [
    Colwise(),
    Colwise(gather=True),
    Rowwise(),
    PackedColwise(),
    PackedColwise([1, 1, 3]),
    PackedRowwise(),
    PackedRowwise((1, 4)),
    VocabSplit(),
    Optional("colwise"),
    Optional(PackedColwise([1, 1])),
    Optional(Colwise(gather=True)),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_an_entry_comes_back_from_its_json_form(entry: Entry) -> None:
    assert parse_entry(entry_to_json(entry)) == entry
    assert parse_entry(entry) is entry


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("colwise", Colwise()),
        ("rowwise", Rowwise()),
        ("packed_colwise", PackedColwise()),
        ("packed_rowwise", PackedRowwise()),
        ("vocab_split", VocabSplit()),
    ],
)
def test_a_style_may_be_written_by_its_name(name: str, style: Style) -> None:
    assert parse_style(name) == style
    assert Optional(name).style == style


def test_the_packed_markers_of_diffusers_are_taken_as_they_are() -> None:
    from diffusers.hooks.tensor_parallel import PackedColwiseParallel, PackedRowwiseParallel

    assert parse_style(PackedColwiseParallel([1, 1])) == PackedColwise([1, 1])
    assert parse_style(PackedRowwiseParallel()) == PackedRowwise()


@pytest.mark.parametrize("value", ["colwize", "Colwise", None, 3, Colwise, {"rowwise": [1]}, {}, ["colwise"]])
def test_anything_else_is_refused_with_the_known_names(value: object) -> None:
    known = "use one of colwise, rowwise, packed_colwise, packed_rowwise, vocab_split or norm_split"
    with pytest.raises(PlanError, match=known) as caught:
        parse_style(value)
    assert caught.value.problems[0].message == f"{value!r} is not a style"


def test_an_unknown_style_is_refused_inside_an_optional_too() -> None:
    with pytest.raises(PlanError, match="'colwize' is not a style"):
        Optional("colwize")


@pytest.mark.parametrize("inner", [Optional("colwise"), {"optional": "colwise"}])
def test_an_optional_is_not_wrapped_twice(inner: object) -> None:
    with pytest.raises(PlanError, match="says the same thing twice; write it once"):
        Optional(inner)


@pytest.mark.parametrize("blocks", [[], [1, 0], [1, -1], [1.5], [True], ["1"], "11", 3])
@pytest.mark.parametrize("style", ["packed_colwise", "packed_rowwise"])
def test_blocks_are_whole_numbers_from_one_up(style: str, blocks: object) -> None:
    with pytest.raises(PlanError, match="are not proportions; list whole numbers from 1 up"):
        parse_style({style: blocks})
