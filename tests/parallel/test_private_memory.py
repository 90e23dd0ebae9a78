"""Law 4: while it loads, a rank's private memory stays under its shards plus 64 MiB."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from rank_cases import World, run_cases

RANKS = 2
ALLOWED = 64 << 20
PATIENCE = 200.0
# about 310 MB in float32, so that a second copy of the shards would be far above what is allowed
OPTIONS = TinyOptions(layers=10, hidden=512, head_dim=64, intermediate=2048)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is read from /proc")


def sharded(world: World, dtype: torch.dtype | None) -> Any:
    layout = Layout(tp=RANKS)
    return load(world.folder, subfolder="transformer", layout=layout, mesh=world.mesh(layout), dtype=dtype)


def split_in_memory(world: World) -> Any:
    layout = Layout(tp=RANKS)
    # mapped files are no private memory, so that the whole model is read into it here
    model = Cosmos3OmniTransformer.from_pretrained(world.folder, subfolder="transformer", disable_mmap=True)
    return parallelize(model, layout, mesh=world.mesh(layout))


ROADS: dict[str, Callable[[World], Any]] = {
    "as-stored": lambda world: sharded(world, None),
    "cast": lambda world: sharded(world, torch.bfloat16),
    "whole-first": split_in_memory,
}


def on_ranks_load_while_watched(world: World) -> dict[str, int]:
    """Each road, between a sign of this rank that it is ready and one that it is done."""
    world.mesh(Layout(tp=RANKS))
    held = {}
    for road, build in ROADS.items():
        world.sign(f"ready-{road}-{world.rank}")
        wait_for(world.folder / f"go-{road}")
        model = build(world)
        world.sign(f"done-{road}-{world.rank}")
        held[road] = sum(parameter.nbytes for parameter in model.parameters())
        wait_for(world.folder / f"seen-{road}")
        del model
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is left all the same counts against the next road
    return held


def wait_for(*files: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline, f"{files} did not appear"
        time.sleep(0.002)


def private_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def watch(folder: Path) -> dict[str, list[int]]:
    """Highest private memory of each rank, above what it held before the first road, by road."""
    ready = [folder / f"ready-{next(iter(ROADS))}-{rank}" for rank in range(RANKS)]
    wait_for(*ready)
    pids = [int(file.read_text()) for file in ready]
    before = [private_bytes(pid) for pid in pids]
    return {
        road: [peak - base for peak, base in zip(_peaks(folder, road, pids), before, strict=True)]
        for road in ROADS
    }


def _peaks(folder: Path, road: str, pids: list[int]) -> list[int]:
    wait_for(*(folder / f"ready-{road}-{rank}" for rank in range(RANKS)))
    (folder / f"go-{road}").touch()
    peaks = [0] * RANKS
    deadline = time.monotonic() + PATIENCE
    while not all((folder / f"done-{road}-{rank}").exists() for rank in range(RANKS)):
        assert time.monotonic() < deadline, f"{road} did not end"
        peaks = [max(peak, private_bytes(pid)) for peak, pid in zip(peaks, pids, strict=True)]
        time.sleep(0.002)
    (folder / f"seen-{road}").touch()
    return peaks


@pytest.fixture(scope="module")
def above_shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """By road and rank, the private bytes at the peak beyond those of the rank's own weights."""
    folder = write_tiny(tmp_path_factory.mktemp("memory") / "model", OPTIONS)
    with ThreadPoolExecutor(1) as threads:
        watched = threads.submit(watch, folder)
        held = run_cases(__name__, RANKS, folder).values("load_while_watched")
        peaks = watched.result()
    return {
        road: [peak - held[rank][road] for rank, peak in enumerate(of_ranks)]
        for road, of_ranks in peaks.items()
    }


@pytest.mark.parametrize("road", ["as-stored", "cast"])
def test_private_memory_stays_under_the_shards_and_64_mib(
    above_shards: dict[str, list[int]], record_property: Any, road: str
) -> None:
    record_property("bytes_above_shards", above_shards[road])
    assert max(above_shards[road]) < ALLOWED


def test_a_whole_model_in_memory_would_be_seen(above_shards: dict[str, list[int]]) -> None:
    assert min(above_shards["whole-first"]) > ALLOWED
