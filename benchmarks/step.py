"""One step of a model split over two ranks of one thread each: Armillary beside diffusers' own route.

    python benchmarks/step.py [--rounds 3] [--repeats 12] [--keep]

All routes split the same random weights in one process group and take turns, step by step:

    armillary      armillary.parallelize(model, Layout(tp=2))
    prompt_reuse   the same with prefill=True, as it denoises: the prompt was computed in an earlier step
    diffusers      model.enable_parallelism, given what it lacks for Cosmos 3 in here only (`peer.py`)
    bare_...       the limit: nothing but this rank's linear layers and attention, nothing but the all-reduces

Goals beside diffusers, at 64 text + 64 vision tokens and at 64 + 1024: armillary <= 0.92 and <= 1.05,
prompt_reuse <= 0.5 and <= 0.97. Exits with 1 when the routes' outputs differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import interleave, provenance, publish, ratios, spread
from inputs import step_inputs
from peer import patched_diffusers, use_local_heads
from torch import nn

import armillary
from armillary.engine.launch import run_ranks
from armillary.engine.worker import Rank

CONFIG: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 3072,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "rope_axes_dim": [12, 10, 10],
}
TEXT_TOKENS = 64
SHAPES = {"64+64": (1, 8, 8), "64+1024": (4, 16, 16)}
"""Text + vision tokens -> the vision tokens' grid (frames, height, width)."""
GOALS = {
    "64+64": {"armillary": 0.92, "prompt_reuse": 0.5},
    "64+1024": {"armillary": 1.05, "prompt_reuse": 0.97},
}
"""Shape -> route -> at most so much of diffusers' time."""
TOLERANCE = 2e-5
"""Of the largest difference between the routes' outputs, whose standard deviation is about 1."""

Times: TypeAlias = dict[str, list[float]]
"""Run -> seconds of each repeat."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="times that the ranks are started anew")
    parser.add_argument("--repeats", type=int, default=12, help="steps of each route per round and shape")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/step.json as well")
    options = parser.parse_args()
    rounds = [_round(options.repeats) for _ in range(options.rounds)]
    shapes = {shape: _figures([one[shape] for one in rounds], GOALS[shape]) for shape in SHAPES}
    setting = {"ranks": 2, "threads_per_rank": 1, "rounds": options.rounds, "config": CONFIG}
    publish("step", {"benchmark": "step", **provenance(), **setting, "shapes": shapes}, keep=options.keep)
    return int(any(figures["outputs_max_abs"] > TOLERANCE for figures in shapes.values()))


def _round(repeats: int) -> dict[str, Any]:
    figures: dict[str, Any] = run_ranks(
        "step:on_each_rank", {"repeats": repeats}, 2, env={"OMP_NUM_THREADS": "1"}
    )
    return figures


def _figures(rounds: list[dict[str, Any]], goals: Mapping[str, float]) -> dict[str, Any]:
    """What is told of one shape, from its times in every round."""
    wall, cpu = ([one[clock] for one in rounds] for clock in ("wall", "cpu"))
    seconds = {run: spread(values) for run, values in _joined(wall).items()}
    limit = seconds["bare_matmuls"]["median"] + seconds["bare_reduces"]["median"]
    return {
        "beside_diffusers": {
            route: _beside_diffusers(route, wall, cpu, goal) for route, goal in goals.items()
        },
        "seconds": seconds,
        "cpu_seconds": {run: spread(values) for run, values in _joined(cpu).items()},
        "limit_seconds": round(limit, 4),
        "times_limit": {run: round(seconds[run]["median"] / limit, 3) for run in ("armillary", "diffusers")},
        "outputs_max_abs": max(one["outputs_max_abs"] for one in rounds),
    }


def _beside_diffusers(route: str, wall: list[Times], cpu: list[Times], goal: float) -> dict[str, Any]:
    def ratio_in(rounds: list[Times]) -> dict[str, float]:
        joined = _joined(rounds)
        return ratios(joined[route], joined["diffusers"])

    ratio = ratio_in(wall)
    return {
        "ratio": ratio,
        "ratio_of_medians_by_round": [ratio_in([one])["of_medians"] for one in wall],
        "goal": goal,
        "met": ratio["of_medians"] <= goal,
        "cpu_ratio": ratio_in(cpu),
    }


def _joined(rounds: list[Times]) -> Times:
    return {run: [value for one in rounds for value in one[run]] for run in rounds[0]}


@torch.no_grad()
def on_each_rank(payload: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """Times and the outputs' distance for every shape; the slower rank's time counts."""
    torch.set_num_threads(1)
    layout = armillary.Layout(tp=rank.world_size)
    ours = armillary.parallelize(_model(), layout)
    reusing = armillary.parallelize(_model(), layout, prefill=True)
    peer = _split_by_diffusers(_model(), rank.world_size)
    rank.heartbeat.beat("computing")
    figures = {}
    for shape, grid in SHAPES.items():
        inputs = step_inputs(TEXT_TOKENS, grid, CONFIG["vocab_size"])
        bare = Bare.of(ours, inputs)
        outputs = [model(**inputs).sample[0] for model in (peer, ours, reusing)]
        runs: dict[str, Callable[[], object]] = {
            "armillary": lambda inputs=inputs: ours(**inputs),  # type: ignore[misc]
            "prompt_reuse": lambda inputs=inputs: reusing(**inputs),  # type: ignore[misc]
            "diffusers": lambda inputs=inputs: peer(**inputs),  # type: ignore[misc]
            "bare_matmuls": bare.matmuls,
            "bare_reduces": bare.reduces,
        }

        def together() -> None:
            rank.heartbeat.beat()
            dist.barrier()

        times = interleave(runs, payload["repeats"], warm_up=2, before_each=together)
        figures[shape] = {
            "wall": _slowest({run: [elapsed.wall for elapsed in each] for run, each in times.items()}),
            "cpu": _slowest({run: [elapsed.cpu for elapsed in each] for run, each in times.items()}),
            "outputs_max_abs": max(float((output - outputs[0]).abs().max()) for output in outputs[1:]),
        }
    return figures


def _model() -> Any:
    """The same random weights wherever it is called."""
    from diffusers import Cosmos3OmniTransformer

    torch.manual_seed(0)
    return Cosmos3OmniTransformer(**CONFIG).eval()


def _split_by_diffusers(model: Any, degree: int) -> Any:
    from diffusers import TensorParallelConfig

    with patched_diffusers():
        model.enable_parallelism(config=TensorParallelConfig(tp_degree=degree))
    use_local_heads(model, degree)
    return model


@dataclass
class Bare:
    """What no tensor-parallel step on this machine can do without, and nothing else."""

    linears: list[tuple[nn.Linear, torch.Tensor]] = field(default_factory=list)
    """Every linear layer that a step calls, with an input of the size that it gets."""
    attentions: list[tuple[torch.Tensor, torch.Tensor, bool]] = field(default_factory=list)
    """Queries, keys (also used as values) and whether causal, per call."""
    reduced: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, model: Any, inputs: Mapping[str, Any]) -> Bare:
        """Listen to one step of a model that Armillary has split."""
        bare = cls()
        hooks = [
            module.register_forward_hook(lambda module, args, _: bare.linears.append((module, args[0])))
            for module in model.modules()
            if isinstance(module, nn.Linear)
        ]
        model(**inputs)
        for hook in hooks:
            hook.remove()
        text, vision = TEXT_TOKENS, inputs["sequence_length"] - TEXT_TOKENS
        for layer in model.layers:
            heads = layer.self_attn.num_attention_heads, layer.self_attn.num_key_value_heads
            for queries, keys, causal in ((text, text, True), (vision, text + vision, False)):
                q, k = (
                    torch.randn(1, count, length, layer.self_attn.head_dim)
                    for count, length in zip(heads, (queries, keys), strict=True)
                )
                bare.attentions.append((q, k, causal))
                bare.reduced += [torch.zeros(queries, CONFIG["hidden_size"]) for _ in ("attention", "mlp")]
        return bare

    def matmuls(self) -> None:
        """The linear layers and the attention."""
        for linear, x in self.linears:
            F.linear(x, linear.weight)
        for q, k, causal in self.attentions:
            F.scaled_dot_product_attention(q, k, k, is_causal=causal, enable_gqa=True)

    def reduces(self) -> None:
        """One all-reduce per row-split layer."""
        for tensor in self.reduced:
            dist.all_reduce(tensor)


def _slowest(times: Times) -> Times:
    """The greatest of the ranks' times for every repeat."""
    everyone: list[Times] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, times)
    return {run: list(map(max, *(one[run] for one in everyone))) for run in times}


if __name__ == "__main__":
    sys.exit(main())
