"""Private memory while denoising, with weights on the device, evicted and streamed, and what it costs a step.

    python benchmarks/memory.py [--repeats 12] [--keep]

One transformer whose two pathways are equal (1.6 GiB in float32, small vocabulary), loaded with prompt reuse
in three ways, each on a fresh rank of one thread:

    resident    all weights in memory
    evicted     Residency(evict="disk"): after the prompt the understanding pathway leaves
    streamed    Residency(offload="disk", resident_layers=2): 2 of 16 layers stay, the others come and go

Memory is RssAnon, looked at from another process, less what the rank had after its imports and a tiny model.
`denoising` is its greatest value over the steps after the first, `loading` that of the load and the first
step, in which the prompt is computed. Then one more rank takes the steps of all three ways in turns.
Goals, beside resident: memory of evicted <= 0.60, of streamed <= 0.35, time of a step of evicted <= 1.02.
Exits with 1 when the three ways' outputs differ in a single bit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import Goal, interleave, provenance, publish, ratios, spread
from inputs import step_inputs
from private_memory import private_bytes, watched

import armillary
from armillary.engine.launch import run_ranks
from armillary.engine.worker import Rank
from armillary.models.cosmos3 import UNUSED_BY_GENERATION
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.residency import Residency

MIB = 1 << 20
MODEL = {
    "hidden": 1024,
    "layers": 16,
    "heads": 16,
    "kv_heads": 8,
    "head_dim": 64,
    "intermediate": 3072,
    "vocab": 320,
    "sound": False,
    "action": False,
}
WAYS = {
    "resident": Residency(),
    "evicted": Residency(evict="disk"),
    "streamed": Residency(offload="disk", resident_layers=2),
}
TEXT_TOKENS, GRID = 64, (1, 8, 8)
STEPS = 4
"""While memory is looked at."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=12, help="timed steps of each way, at least 2")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/memory.json as well")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: a spread needs at least 2")
    with tempfile.TemporaryDirectory(prefix="armillary-memory-") as scratch:
        payload = {**_write_models(Path(scratch)), "repeats": options.repeats}
        memory = {way: _on_a_rank("memory_of", {**payload, "way": way}) for way in WAYS}
        steps = _on_a_rank("step_times", payload)
    setting = {"ranks": 1, "threads": 1, "model": MODEL, "text_tokens": TEXT_TOKENS, "grid": GRID}
    figures = _figures(memory, steps)
    publish("memory", {"benchmark": "memory", **provenance(), **setting, **figures}, keep=options.keep)
    return int(not steps["same_bits"])


def _write_models(scratch: Path) -> dict[str, str]:
    """The model to measure and the one to warm up with."""
    model = write_tiny(scratch / "model", TinyOptions(**MODEL))  # type: ignore[arg-type]
    return {"model": str(model), "tiny": str(write_tiny(scratch / "tiny", TinyOptions()))}


def _on_a_rank(task: str, payload: Mapping[str, Any]) -> Any:
    return run_ranks(f"memory:{task}", payload, 1, env={"OMP_NUM_THREADS": "1"})


def _figures(memory: Mapping[str, Mapping[str, int]], steps: Mapping[str, Any]) -> dict[str, Any]:
    beside = {way: memory[way]["denoising"] / memory["resident"]["denoising"] for way in WAYS}
    wall = {way: ratios(steps["wall"][way], steps["wall"]["resident"]) for way in ("evicted", "streamed")}
    goals = {
        "memory_of_evicted": Goal(0.60, beside["evicted"]),
        "memory_of_streamed": Goal(0.35, beside["streamed"]),
        "step_of_evicted": Goal(1.02, wall["evicted"]["of_medians"]),
    }
    return {
        "goals": {name: goal.told() for name, goal in goals.items()},
        "private_MiB": {way: {when: n // MIB for when, n in memory[way].items()} for way in WAYS},
        "step_ratios": {f"{way}/resident": ratio for way, ratio in wall.items()},
        "step_cpu_ratios": {
            f"{way}/resident": ratios(steps["cpu"][way], steps["cpu"]["resident"]) for way in wall
        },
        "step_seconds": {way: spread(seconds) for way, seconds in steps["wall"].items()},
        "same_bits": steps["same_bits"],
    }


@torch.no_grad()
def memory_of(payload: Mapping[str, Any], rank: Rank) -> dict[str, int]:
    """The greatest private memory in bytes, above what there was before, of one way."""
    inputs = step_inputs(TEXT_TOKENS, GRID, MODEL["vocab"])
    _load(payload["tiny"], payload["way"])(**inputs)
    rank.heartbeat.beat("computing")
    held = private_bytes()
    with watched() as loading:
        model = _load(payload["model"], payload["way"])
        model(**inputs)
    with watched() as denoising:
        for _ in range(STEPS):
            model(**inputs)
    return {"loading": loading.peak - held, "denoising": denoising.peak - held}


@torch.no_grad()
def step_times(payload: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Seconds of the steps of all ways in turns, after the one that computes the prompt."""
    inputs = step_inputs(TEXT_TOKENS, GRID, MODEL["vocab"])
    models = {way: _load(payload["model"], way) for way in WAYS}
    outputs = [model(**inputs).sample[0] for model in models.values()]
    rank.heartbeat.beat("computing")
    steps = {way: partial(model, **inputs) for way, model in models.items()}
    times = interleave(steps, payload["repeats"], before_each=rank.heartbeat.beat)
    return {
        "wall": {way: [elapsed.wall for elapsed in each] for way, each in times.items()},
        "cpu": {way: [elapsed.cpu for elapsed in each] for way, each in times.items()},
        "same_bits": all(torch.equal(output, outputs[0]) for output in outputs),
    }


def _load(folder: str, way: str) -> Any:
    return armillary.load(
        folder,
        subfolder="transformer",
        residency=WAYS[way],
        prefill=True,
        leave_out=UNUSED_BY_GENERATION,
        progress=False,
    )


if __name__ == "__main__":
    sys.exit(main())
