"""A thousand malformed requests: each is refused by the name of its field, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from malformed import malformed
from servers import Server

ALLOWED_GROWTH = 16 << 20
"""Bytes of the HTTP process, some of whose requests had bodies of 10 MB."""


def check_refusals(server: Server, numbers: range) -> int:
    """Send them; how many bytes the HTTP process has grown by."""
    files, jobs = _files(server), server.get("/v1/videos").json()["data"]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(-20, 0):  # what is allocated once
            client.post("/v1/videos", headers=malformed(number).headers, content=malformed(number).body)
        before = _memory(server)
        for number in numbers:
            sent = malformed(number)
            answer = client.post(sent.path, headers=sent.headers, content=sent.body)
            what = f"{number}: {sent.path} {sent.body[:300]!r} -> {answer.status_code} {answer.text[:300]}"
            assert 400 <= answer.status_code < 500, what
            error = answer.json()["error"]
            assert error["param"] == sent.param, what
            assert error["message"], what
        grown = _memory(server) - before
    assert _files(server) == files
    assert server.get("/v1/videos").json()["data"] == jobs
    assert grown < ALLOWED_GROWTH
    return grown


def _memory(server: Server) -> int:
    (process,) = server.part("http_process")
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def _files(server: Server) -> set[str]:
    return {path.name for folder in ("uploads", "results") for path in (server.data / folder).iterdir()}


@pytest.mark.timeout(120)
def test_a_hundred_malformed_requests_are_refused_by_field(server: Server) -> None:
    check_refusals(server, range(100))


@pytest.mark.soak
def test_a_thousand_malformed_requests_are_refused_by_field(
    server: Server, record_property: pytest.FixtureRequest
) -> None:
    record_property("grown_bytes", check_refusals(server, range(1000)))  # type: ignore[operator]
