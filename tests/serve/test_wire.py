"""The line to the first rank and the link between the two processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from armillary.engine.wire import Line, LineClosedError, listen
from armillary.serve.link import Link


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Line(ours), theirs


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    ours, theirs = Link.pair()
    with closing(ours), closing(theirs):
        yield ours, theirs


def test_messages_arrive_whole_however_they_are_cut(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    peer.sendall(b'{"a": 1}\n{"b"')
    assert line.receive(1) == {"a": 1}
    assert line.receive(0) is None
    peer.sendall(b": 2}\n")
    assert line.receive(1) == {"b": 2}


def test_what_was_said_before_the_end_is_heard_first(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    peer.sendall(b'{"a": 1}\n')
    peer.close()
    assert line.receive(1) == {"a": 1}
    with pytest.raises(LineClosedError):
        line.receive(1)


def test_to_nobody_nothing_is_said(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    peer.close()
    with pytest.raises(LineClosedError):
        line.send({"a": 1})


def test_a_line_replaces_the_one_that_an_earlier_process_left(tmp_path: Path) -> None:
    listen(tmp_path / "line").close()
    with listen(tmp_path / "line") as listener, closing(Line.to(tmp_path / "line")) as line:
        line.send({"a": 1})
        with closing(Line(listener.accept()[0])) as other:
            assert other.receive(1) == {"a": 1}


def test_a_link_never_waits_for_a_reader(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    for number in range(10_000):
        ours.send({"number": number, "text": "x" * 1000})
    assert next(theirs.receive())["number"] == 0


def test_a_link_gives_what_has_arrived(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    ours.send({"a": 1})
    ours.send({"b": 2})
    assert list(theirs.receive()) == [{"a": 1}, {"b": 2}]
    assert list(theirs.receive()) == []
