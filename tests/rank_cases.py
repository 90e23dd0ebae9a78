"""Cases that run on ranks: a test module's group of ranks is started once and runs all of them.

A case is a function of the test module whose name starts with `on_ranks_`. It is called on every rank with
a `World`, asserts there, and may return JSON, which the test finds by rank:

    def on_ranks_the_parts_are_summed(world: World) -> None:
        assert world.mesh(Layout(tp=2)).tp.all_reduce(torch.ones(1)) == 2

    @pytest.fixture(scope="module")
    def told(tmp_path_factory):
        return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))

    @pytest.mark.parametrize("case", cases_of(__name__))
    def test_on_4_ranks(told, case):
        told.check(case)

The group is as large as the largest layout; smaller ones use some of its ranks.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from armillary.errors import LayoutError
from armillary.layout import Layout

PREFIX = "on_ranks_"
STEP_TIMEOUT = 280.0
"""Below the 300 s of a test, so that a stall is told by the rank that is to blame."""
PATIENCE = 30.0
"""Seconds that a rank on which a case has failed gives the others to end it too."""


@dataclass
class World:
    """What a case knows of the group it runs on."""

    rank: int
    size: int
    folder: Path
    """Shared by all ranks and the test."""
    arguments: Mapping[str, Any]
    """What the test module gave to `run_cases`."""
    _meshes: dict[Any, Any] = field(default_factory=dict)

    def mesh(self, layout: Layout, ranks: Sequence[int] | None = None) -> Any:
        """`layout` on `ranks`; None on a rank outside it. Built once, by all ranks in the same order."""
        from armillary.parallel.mesh import build_mesh

        key = (layout, tuple(range(layout.world_size) if ranks is None else ranks))
        if key not in self._meshes:
            try:
                self._meshes[key] = build_mesh(layout, ranks)
            except LayoutError as error:
                if error.problems[0].rule != "outside-layout":
                    raise
                self._meshes[key] = None
        return self._meshes[key]

    def block(self, layout: Layout) -> Any:
        """A mesh of `layout` on this rank's own block of neighbours: every rank of the group is used."""
        step = layout.world_size
        meshes = [
            self.mesh(layout, range(first, first + step)) for first in range(0, self.size - step + 1, step)
        ]
        return meshes[self.rank // step]

    def sign(self, name: str) -> None:
        """Leave a file that appears whole and holds this process's number."""
        part = self.folder / f".{name}"
        part.write_text(str(os.getpid()))
        part.replace(self.folder / name)


@dataclass(frozen=True)
class Told:
    """What every rank told of every case."""

    cases: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)

    def check(self, case: str) -> None:
        """Fail with the tracebacks of the ranks on which the case failed."""
        ranks: dict[str, list[int]] = {}
        for rank, told in enumerate(self.cases[case]):
            if told["error"]:
                ranks.setdefault(told["error"], []).append(rank)
        assert not ranks, "\n".join(f"on ranks {where}:\n{error}" for error, where in ranks.items())

    def values(self, case: str) -> list[Any]:
        """What a case returned, in rank order."""
        self.check(case)
        return [told["value"] for told in self.cases[case]]


def cases_of(module: str) -> list[str]:
    """Names of the cases of a module, without their prefix, in the order in which they are written."""
    return [name.removeprefix(PREFIX) for name in vars(sys.modules[module]) if name.startswith(PREFIX)]


def run_cases(
    module: str, ranks: int, folder: Path, *, step_timeout: float = STEP_TIMEOUT, **arguments: Any
) -> Told:
    """Run all cases of a test module on one new group of ranks."""
    from armillary.engine.launch import run_ranks

    payload = {"module": module, "folder": str(folder), "arguments": arguments}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ranks share.*CPU cores", RuntimeWarning)
        return Told(run_ranks("rank_cases:run_on_rank", payload, ranks, step_timeout=step_timeout))


def run_on_rank(payload: Mapping[str, Any], rank: Any) -> dict[str, list[Any]]:
    """The task: every case, one after another; the ranks meet after each."""
    import torch.distributed as dist

    module = importlib.import_module(payload["module"])
    world = World(rank.rank, rank.world_size, Path(payload["folder"]), payload["arguments"])
    told = {}
    for case in cases_of(payload["module"]):
        rank.heartbeat.beat("computing")
        mine = _run(getattr(module, PREFIX + case), case, world)
        if mine["error"]:
            _await_others(case, world, mine["error"])
        with rank.heartbeat.waiting():
            everyone: list[Any] = [None] * rank.world_size
            dist.all_gather_object(everyone, mine)
        told[case] = everyone
    return told


def _run(function: Callable[[World], Any], case: str, world: World) -> dict[str, Any]:
    try:
        return {"value": function(world), "error": None}
    except (Exception, pytest.fail.Exception):  # the second is what `pytest.raises` raises
        return {"value": None, "error": traceback.format_exc()}
    finally:
        world.sign(f"ended-{case}-{world.rank}")


def _await_others(case: str, world: World, error: str) -> None:
    """Others may wait for this rank in the middle of the case; raising ends the group, this error first."""
    deadline = time.monotonic() + PATIENCE
    while not all((world.folder / f"ended-{case}-{rank}").exists() for rank in range(world.size)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{case} failed on rank {world.rank}:\n{error}")
        time.sleep(0.05)
