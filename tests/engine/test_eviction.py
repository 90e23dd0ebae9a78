"""Eviction where nobody has said: only where the device is crowded, and to where there is room."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armillary.cli.options import RESIDENCY, residency_of
from armillary.engine import eviction as module
from armillary.engine.abilities import abilities
from armillary.engine.eviction import Room, eviction
from armillary.engine.prepare import prepare
from armillary.errors import RequestError
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.residency import Residency

GIB = 1 << 30
H100 = Room(has_own_memory=True, needed=60 * GIB, device=80 * GIB, away=25 * GIB, host=200 * GIB)


@pytest.mark.parametrize(
    ("room", "place"),
    [
        (H100, None),
        (replace(H100, needed=72 * GIB), None),
        (replace(H100, needed=73 * GIB), "host"),
        (replace(H100, needed=90 * GIB), "host"),
        (replace(H100, needed=90 * GIB, host=26 * GIB), "disk"),
        (replace(H100, needed=90 * GIB, host=None), "disk"),
        (replace(H100, needed=90 * GIB, device=None), None),
        (replace(H100, has_own_memory=False, needed=20 * GIB, device=24 * GIB), None),
        (replace(H100, has_own_memory=False, needed=22 * GIB, device=24 * GIB, host=24 * GIB), "disk"),
    ],
)
def test_what_only_the_prompt_needs_leaves_a_crowded_device(room: Room, place: str | None) -> None:
    assert eviction(room) == place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("eviction") / "tiny", TinyOptions(layers=1))


REQUEST = {"prompt": "tea", "size": "48x80", "num_frames": 5}


def test_the_figures_are_those_of_this_machine(folder: Path) -> None:
    job = prepare(REQUEST, folder, {}, here=True)
    room = module.room_for(folder, job.request, job.layout, job.dtype)
    assert room.device is not None
    assert room.device == room.host
    assert 0 < room.away < room.needed


def test_a_server_makes_room_for_the_published_video(folder: Path) -> None:
    job = prepare({"prompt": "start", "mode": "text-to-image"}, folder, {})
    video = module.usual_video(job.request, abilities(folder))
    assert (video.mode, video.num_frames > job.request.num_frames) == ("text-to-video", True)
    still, moving = (module.room_for(folder, r, job.layout, job.dtype) for r in (job.request, video))
    assert moving.needed > still.needed


@pytest.mark.parametrize(
    ("residency", "evict"),
    [
        (None, "disk"),
        ({}, "disk"),
        ({"evict": None}, None),
        ({"evict": "host"}, "host"),
        ({"offload": "disk"}, None),
        (Residency(), None),
    ],
)
def test_a_crowded_machine_decides_what_was_left_open_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, residency: Any, evict: str | None
) -> None:
    monkeypatch.setattr(module, "_free_host_bytes", lambda: 1)
    assert prepare(REQUEST, folder, {}, residency=residency, here=True).residency.evict == evict
    assert prepare(REQUEST, folder, {}, residency=residency).residency.evict in (evict, None)


@pytest.mark.parametrize(
    ("given", "fields"), [("", {}), ("evict", {"evict": "auto"}), ("no_evict", {"evict": None})]
)
def test_eviction_is_switched_on_off_or_left_open(given: str, fields: dict[str, Any]) -> None:
    flags: dict[str, Any] = dict.fromkeys(RESIDENCY)
    assert residency_of(flags | {given: True}) == fields
    with pytest.raises(RequestError, match="--evict and --no-evict contradict each other"):
        residency_of(flags | {"evict": True, "no_evict": True})
