"""Loading a sharded model on two ranks: Armillary beside diffusers' own route and a plain read.

    python benchmarks/load.py [--rounds 5] [--keep]

One transformer of random weights (2 GiB in float32, one file, in the page cache), three routes in turns, each
time on two fresh ranks of one thread:

    armillary    armillary.load(folder, layout=Layout(tp=2))
    diffusers    from_pretrained(folder, parallel_config=TensorParallelConfig(tp_degree=2))
    plain_read   as many bytes as the rank's shards, one after another, into memory of their own

diffusers gets what it lacks for Cosmos 3 inside this script only (see `peer.py`); it can split everything
but the embedding. Each route first loads a tiny model, so that imports and connections are not timed. The
slower rank's time counts, and of private memory (RssAnon, sampled from outside) the rank that had most above
what it had before. Goals: wall time <= 0.7 x diffusers' and <= 1.2 x the plain read's, private memory <=
1.05 x the shards + 64 MiB, bytes read (rchar) <= 1.02 x the shards; what is copied from a mapped file
is not counted there (all of diffusers' reads, and our row-split layers). Exits with 1 when the two routes'
weights differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from common import Goal, provenance, publish, ratios, spread
from peer import PEER_PLAN, patched_diffusers
from private_memory import private_bytes, watched

import armillary
from armillary import Layout
from armillary.engine.launch import run_ranks
from armillary.engine.worker import Rank
from armillary.models.described import describe

RANKS = 2
MIB = 1 << 20
MODEL = {
    "hidden": 1536,
    "layers": 8,
    "heads": 24,
    "kv_heads": 8,
    "head_dim": 64,
    "intermediate": 4608,
    "vocab": 32000,
    "sound": False,
    "action": False,
}
ROUTES = ("armillary", "diffusers", "plain_read")
COMPARED = ("layers.0.self_attn.to_q.weight", "layers.1.mlp.down_proj.weight", "norm.weight")
"""Split by columns, split by rows, and whole."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="times that each route is run, at least 2")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/load.json as well")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: a spread needs at least 2")
    with tempfile.TemporaryDirectory(prefix="armillary-load-") as scratch:
        model, tiny = _write_models(Path(scratch))
        runs = _take_turns({"model": str(model), "tiny": str(tiny)}, options.rounds)
        shards = [_shards_of(model).bytes_on(rank) for rank in range(RANKS)]
        stored = describe(model).index.nbytes
    setting = {"ranks": RANKS, "threads_per_rank": 1, "model": MODEL, "model_MiB": stored // MIB}
    setting |= {"shard_MiB": [nbytes // MIB for nbytes in shards], "rounds": options.rounds}
    figures = _figures(runs, shards)
    publish("load", {"benchmark": "load", **provenance(), **setting, **figures}, keep=options.keep)
    return 0 if figures["same_weights"] else 1


def _write_models(scratch: Path) -> tuple[Path, Path]:
    """The model to measure and the one to warm up with, as transformer folders."""
    from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

    made = [write_tiny(scratch / "model", TinyOptions(**MODEL)), write_tiny(scratch / "tiny", TinyOptions())]  # type: ignore[arg-type]
    return made[0] / "transformer", made[1] / "transformer"


def _take_turns(folders: Mapping[str, str], rounds: int) -> dict[str, list[list[dict[str, Any]]]]:
    """For every route and round, what each rank saw. Every other round goes backwards."""
    runs: dict[str, list[list[dict[str, Any]]]] = {route: [] for route in ROUTES}
    for turn in range(rounds):
        for route in ROUTES if turn % 2 == 0 else reversed(ROUTES):
            payload = {"route": route, **folders}
            runs[route].append(run_ranks("load:on_each_rank", payload, RANKS, env={"OMP_NUM_THREADS": "1"}))
    return runs


def _shards_of(folder: Path) -> Any:
    return armillary.resolve(describe(folder).skeleton, Layout(tp=RANKS))


def _figures(runs: Mapping[str, Sequence[list[dict[str, Any]]]], shards: Sequence[int]) -> dict[str, Any]:
    """Of every route its figures, and of ours what the goals say."""
    seconds = {route: [max(rank["seconds"] for rank in ranks) for ranks in runs[route]] for route in ROUTES}
    peak = {route: _greatest(runs[route], "private_peak") for route in ROUTES}
    read = {route: _greatest(runs[route], "rchar") for route in ROUTES}
    goals = {
        "wall_of_diffusers": Goal(0.7, ratios(seconds["armillary"], seconds["diffusers"])["of_medians"]),
        "wall_of_plain_read": Goal(1.2, ratios(seconds["armillary"], seconds["plain_read"])["of_medians"]),
        "private_MiB": Goal((1.05 * max(shards)) / MIB + 64, peak["armillary"] / MIB),
        "read_of_shards": Goal(1.02, read["armillary"] / max(shards)),
    }
    return {
        "goals": {name: goal.told() for name, goal in goals.items()},
        "ratios": {
            f"armillary/{other}": ratios(seconds["armillary"], seconds[other]) for other in ROUTES[1:]
        },
        "seconds": {route: spread(values) for route, values in seconds.items()},
        "private_peak_of_shards": {route: round(peak[route] / max(shards), 3) for route in ROUTES},
        "read_of_shards": {route: round(read[route] / max(shards), 3) for route in ROUTES},
        "same_weights": all(
            ours[rank]["sums"] == theirs[rank]["sums"]
            for ours, theirs in zip(runs["armillary"], runs["diffusers"], strict=True)
            for rank in range(RANKS)
        ),
    }


def _greatest(runs: Sequence[list[dict[str, Any]]], key: str) -> int:
    return max(int(rank[key]) for ranks in runs for rank in ranks)


def on_each_rank(payload: Mapping[str, Any], rank: Rank) -> list[dict[str, Any]]:
    """Run one route, and say of every rank how long it took, what it held and what it read."""
    route = {"armillary": _armillary, "diffusers": _diffusers, "plain_read": _plain_read}[payload["route"]]
    route(Path(payload["tiny"]), rank)
    rank.heartbeat.beat("computing")
    dist.barrier()
    with _measured() as figures:
        tensors = route(Path(payload["model"]), rank)
    figures["sums"] = [tensors[name].double().sum().item() for name in COMPARED if name in tensors]
    everyone: list[dict[str, Any]] = [{} for _ in range(rank.world_size)]
    dist.all_gather_object(everyone, figures)
    return everyone


def _armillary(folder: Path, rank: Rank) -> Mapping[str, torch.Tensor]:
    return dict(armillary.load(folder, layout=Layout(tp=rank.world_size)).named_parameters())


def _diffusers(folder: Path, rank: Rank) -> Mapping[str, torch.Tensor]:
    """diffusers' load, with the plan that splits most: `lm_head` as well."""
    from diffusers import Cosmos3OmniTransformer, TensorParallelConfig
    from diffusers.utils import logging
    from torch.distributed.tensor import DTensor

    logging.set_verbosity_error()  # of its notes, not one is about this
    with (
        patched_diffusers(),
        patch.object(Cosmos3OmniTransformer, "_tp_plan", {**PEER_PLAN, "lm_head": "colwise"}),
    ):
        config = TensorParallelConfig(tp_degree=rank.world_size)
        model = Cosmos3OmniTransformer.from_pretrained(folder, parallel_config=config)
    return {n: p.to_local() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}


def _plain_read(folder: Path, rank: Rank) -> Mapping[str, torch.Tensor]:
    """As many bytes as this rank's shards, from its end of the one file."""
    (file,) = folder.glob("*.safetensors")
    memory = torch.empty(_shards_of(folder).bytes_on(rank.rank), dtype=torch.uint8)
    view, done = memory.numpy().data, 0
    with file.open("rb", buffering=0) as opened:
        opened.seek(rank.rank * (file.stat().st_size - len(view)))
        while done < len(view):
            done += opened.readinto(view[done:])
    return {"memory": memory}


@contextmanager
def _measured() -> Iterator[dict[str, Any]]:
    """Seconds, bytes read (rchar) and the private memory's peak above what it is now, by another process."""
    figures: dict[str, Any] = {}
    with watched() as memory:
        held, read = private_bytes(), _bytes_read()
        start = time.perf_counter()
        yield figures
        figures["seconds"] = time.perf_counter() - start
        figures["rchar"] = _bytes_read() - read
    figures["private_peak"] = memory.peak - held


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


if __name__ == "__main__":
    sys.exit(main())
