"""Slots that ranks write and others read, and who is blamed for a stall."""

import sys
import time
import timeit
from pathlib import Path
from subprocess import Popen

import pytest

from armillary.engine.heartbeat import (
    Heartbeat,
    HeartbeatFile,
    Phase,
    Pulse,
    current_heartbeat,
    find_stalled,
    heartbeat_of_this_process,
)


def pulse(phase: Phase, *, age: float, waits: int = 0, ready: bool = True) -> Pulse:
    return Pulse(beats=1, waits=waits, time=100.0 - age, phase=phase, ready=ready, step=0, steps=0)


def blamed(*pulses: Pulse, stopped: int | None = None) -> int | None:
    return find_stalled(
        pulses, now=100.0, step_timeout=3, init_timeout=30, is_stopped=lambda rank: rank == stopped
    )


@pytest.fixture
def slots(tmp_path: Path) -> HeartbeatFile:
    return HeartbeatFile.create(tmp_path / "heartbeats", world_size=2)


@pytest.fixture
def rank_1(slots: HeartbeatFile, tmp_path: Path) -> Heartbeat:
    return Heartbeat.open(tmp_path / "heartbeats", rank=1)


def test_a_new_file_says_that_every_rank_starts_now(slots: HeartbeatFile) -> None:
    assert [pulse.phase for pulse in slots.read()] == ["starting", "starting"]
    assert all(time.monotonic() - pulse.time < 60 for pulse in slots.read())


def test_a_beat_is_seen_in_its_own_slot_only(slots: HeartbeatFile, rank_1: Heartbeat) -> None:
    rank_1.beat("computing", step=3, steps=8)
    assert [str(pulse) for pulse in slots.read()] == ["starting", "computing, step 3 of 8"]


_BEAT_FOR_A_SECOND = """
import pathlib, sys, time
from armillary.engine.heartbeat import Heartbeat
heartbeat, end = Heartbeat.open(pathlib.Path(sys.argv[1]), rank=0), time.monotonic() + 1
while time.monotonic() < end:
    heartbeat.beat()
"""


def test_a_slot_is_never_read_while_it_is_empty(slots: HeartbeatFile, tmp_path: Path) -> None:
    times = set()
    with Popen([sys.executable, "-c", _BEAT_FOR_A_SECOND, tmp_path / "heartbeats"]) as rank:
        while rank.poll() is None:
            times.add(slots.read()[0].time)
    assert rank.returncode == 0
    assert time.monotonic() - min(times) < 60


def test_a_beat_without_words_moves_and_keeps_the_rest(rank_1: Heartbeat) -> None:
    rank_1.beat("computing", step=3, steps=8)
    before = rank_1.read()
    rank_1.beat()
    after = rank_1.read()
    assert (after.phase, after.step, after.steps) == ("computing", 3, 8)
    assert after.beats == before.beats + 1
    assert after.time >= before.time


def test_a_collective_counts_as_waiting_and_then_the_former_phase_returns(rank_1: Heartbeat) -> None:
    with rank_1.waiting(), rank_1.waiting():
        assert rank_1.read().phase == "waiting"
    assert (rank_1.read().phase, rank_1.read().waits) == ("starting", 2)


def test_a_collective_during_the_start_does_not_end_the_start(rank_1: Heartbeat) -> None:
    with rank_1.waiting():
        pass
    assert not rank_1.read().ready


def test_a_collective_that_raises_leaves_the_rank_waiting(rank_1: Heartbeat) -> None:
    with pytest.raises(RuntimeError), rank_1.waiting():
        raise RuntimeError
    assert rank_1.read().phase == "waiting"


def test_a_collective_after_one_that_raised_is_told_as_usual(rank_1: Heartbeat) -> None:
    rank_1.beat("computing")
    with pytest.raises(RuntimeError), rank_1.waiting():
        raise RuntimeError
    rank_1.beat("computing")
    with rank_1.waiting():
        assert rank_1.read().phase == "waiting"
    assert rank_1.read().phase == "computing"


def test_the_current_heartbeat_is_that_of_the_block(rank_1: Heartbeat) -> None:
    with heartbeat_of_this_process(rank_1):
        assert current_heartbeat() is rank_1
    assert current_heartbeat() is not rank_1


def test_a_beat_costs_microseconds(rank_1: Heartbeat) -> None:
    # 0.7 us measured; the bound only keeps a file write or a lock out, on a machine that is busy
    best = min(timeit.repeat(lambda: rank_1.beat("computing", step=1, steps=2), number=1000, repeat=5))
    assert best / 1000 < 20e-6


def test_nobody_is_blamed_while_the_group_moves() -> None:
    assert blamed(pulse("computing", age=1), pulse("waiting", age=2)) is None


def test_the_silent_rank_that_does_not_wait_is_blamed() -> None:
    assert blamed(pulse("waiting", age=9), pulse("computing", age=8)) == 1


def test_a_rank_that_waits_for_one_that_moves_is_not_blamed() -> None:
    assert blamed(pulse("waiting", age=9), pulse("computing", age=1)) is None


def test_when_all_wait_the_one_furthest_behind_is_blamed() -> None:
    assert blamed(pulse("waiting", age=8, waits=7), pulse("waiting", age=9, waits=6)) == 1


def test_a_stopped_rank_is_blamed_even_in_a_collective() -> None:
    assert blamed(pulse("waiting", age=9), pulse("waiting", age=8), stopped=1) == 1


def test_a_rank_that_is_done_is_never_blamed() -> None:
    assert blamed(pulse("done", age=99), pulse("computing", age=1)) is None
    assert blamed(pulse("done", age=99), pulse("waiting", age=9)) == 1


def test_until_all_have_computed_the_longer_timeout_holds() -> None:
    starting = pulse("starting", age=9, ready=False)
    assert blamed(pulse("waiting", age=9), starting) is None
    assert blamed(pulse("waiting", age=40), pulse("starting", age=31, ready=False)) == 1
