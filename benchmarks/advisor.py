"""Fits the advisor's factors to NVIDIA's published latencies, and says how far its predictions are off.

    .venv/bin/python benchmarks/advisor.py [--keep]

`data/cosmos3_latency.csv`: 242 cells of NVIDIA's Cosmos 3 inference benchmarks (github.com/NVIDIA/cosmos,
`inference_benchmarks.md`, June 2026). `data/cosmos3_latency_held_out.csv`: cells of three more kinds of card
and of Super offloaded layer by layer, from later versions of that page; nothing was fitted to them.

Factors are fitted to the video rows only. Images are launch-bound: from those on one card `launch` is taken,
after the rest; those on several are left out (on 8, where 480p has 390 rows that Ulysses over 4 pads,
vLLM-Omni takes 7 to 11 s instead of 2).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from common import provenance, publish

from armillary.advisor.engines import ENGINES, Engine
from armillary.advisor.hardware import GPUS
from armillary.advisor.latency import Machine, latency_of
from armillary.advisor.model import find_model
from armillary.advisor.option import shards_weights
from armillary.advisor.rank import RankModel
from armillary.advisor.workload import PROMPT_TOKENS, Workload
from armillary.layout import Layout
from armillary.residency import Residency

DATA = Path(__file__).parent / "data"
CARDS = {
    "RTX PRO 6000 Blackwell": "rtx-pro-6000",
    "H20": "h20",
    "H100 NVL": "h100-nvl",
    "H100 80GB HBM3": "h100-80gb",
    "H200 141GB HBM3": "h200-141gb",
    "H200 NVL": "h200-nvl",
    "B200": "b200",
    "B300": "b300",
}
SIZES = {"256p": (320, 192), "480p": (832, 480), "720p": (1280, 720)}
FITTED = {
    "vllm-omni": ("matrix", "attention", "decode", "link", "reduce", "request"),
    "pytorch": ("matrix", "attention", "portable", "decode", "overlap", "request"),
    "diffusers": ("matrix", "attention", "decode", "request"),
}
"""Fitted to the video rows; `launch` follows from images, and `power` counts as chosen too: at most eight."""
START = {
    "matrix": 0.65,
    "attention": 0.7,
    "portable": 0.35,  # FlashAttention-2 on a card it was not written for (FlashAttention-3 paper)
    "decode": 0.35,
    "link": 0.8,
    "reduce": 1.0,
    "overlap": 1.5,
    "request": 1.0,
}
WIDE = 0.08
"""Relative error beyond which a row counts less than quadratically."""


@dataclass(frozen=True)
class Row:
    """One published cell, with the layout that it is read as."""

    model: str
    mode: str
    card: str
    engine: str
    resolution: str
    ranks: int
    seconds: float
    layout: Layout
    residency: Residency

    @property
    def is_large(self) -> bool:
        """A video of 480p or 720p: what the goals are about."""
        return self.mode != "t2i" and self.resolution != "256p"


def main() -> None:
    """Fit, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true", help="also write results/advisor.json")
    keep = parser.parse_args().keep
    rows, held_out = read_rows(DATA / "cosmos3_latency.csv"), read_rows(DATA / "cosmos3_latency_held_out.csv")
    engines = {name: judge(name, rows, held_out) for name in FITTED}
    publish("advisor", {**provenance(), "engines": engines}, keep=keep)


def judge(name: str, rows: Sequence[Row], held_out: Sequence[Row]) -> dict[str, Any]:
    """Everything about one engine's rows."""
    own = [row for row in rows if row.engine == name]
    fitted = fit(name, own)
    shipped = ENGINES[name]
    later = [row for row in held_out if row.engine == name]
    return {
        "fitted": {key: float(f"{value:.4g}") for key, value in fitted.items()},
        "shipped_differ_by": round(
            max(abs(getattr(shipped.factors, k) / v - 1) for k, v in fitted.items()), 4
        ),
        "power_if_fitted": round(_power(name, own, fitted), 3),
        "errors_percent": split(own, shipped),
        "without_one_kind": {
            card: summary([row for row in own if row.card == card and row.is_large], with_factors(shipped, q))
            for card in sorted({row.card for row in own})
            for q in [fit(name, [row for row in own if row.card != card])]
        },
        "held_out": {
            f"{card}{' offloaded' if moved else ''}": summary(found, shipped)
            for card in sorted({row.card for row in later})
            for moved in (False, True)
            if (found := [r for r in later if r.card == card and r.residency.moves == moved])
        },
        "rows": [
            {
                **{
                    key: getattr(row, key)
                    for key in ("model", "mode", "card", "resolution", "ranks", "seconds")
                },
                "layout": str(row.layout),
                "predicted": round(predict(row, shipped), 2),
            }
            for row in [*own, *later]
        ],
    }


def split(own: Sequence[Row], engine: Engine) -> dict[str, Any]:
    """Errors of the kinds of rows that are reported apart."""
    readings = {"as tensor parallel": True, "as cfg 2 x Ulysses": False}
    several = {
        reading: summary([r for r in own if r.is_large and (r.ranks == 1 or (r.layout.tp > 1) == tp)], engine)
        for reading, tp in readings.items()
    }
    return {
        "video 480p and 720p": summary([row for row in own if row.is_large], engine),
        **(several if engine.name == "vllm-omni" else {}),
        "video 256p": summary([row for row in own if row.mode != "t2i" and not row.is_large], engine),
        "images": summary([row for row in own if row.mode == "t2i" and row.ranks < 8], engine),
        "images on 8": summary([row for row in own if row.mode == "t2i" and row.ranks == 8], engine),
    }


def summary(rows: Sequence[Row], engine: Engine) -> dict[str, float]:
    """Median, 90th percentile and worst absolute error in percent, and of how many rows."""
    if not rows:
        return {"n": 0}
    errors = [100 * abs(predict(row, engine) / row.seconds - 1) for row in rows]
    figures = {"median": np.median(errors), "p90": np.quantile(errors, 0.9), "worst": max(errors)}
    return {**{name: round(float(value), 1) for name, value in figures.items()}, "n": len(rows)}


def read_rows(path: Path) -> list[Row]:
    """The cells of a file. A vLLM-Omni cell of several cards is read twice.

    The page says that such cells are tensor-parallel. On cards without NVLink that is impossible in the time
    given (the all-reduces of a 720p video are 2.7 TB), and the vendor's recipes say `--cfg-parallel-size 2
    --ulysses-degree 4`.
    """
    rows = []
    with path.open() as file:
        for cell in csv.DictReader(file):
            ranks = int(cell["gpus"])
            for layout in _layouts(cell["engine"], ranks):
                rows.append(
                    Row(
                        model=cell["model"],
                        mode=cell["mode"],
                        card=CARDS[cell["gpu"]],
                        engine=cell["engine"].lower(),
                        resolution=cell["resolution"],
                        ranks=ranks,
                        seconds=float(cell["seconds"]),
                        layout=layout,
                        residency=Residency(offload="host" if cell.get("residency") == "offload" else None),
                    )
                )
    return rows


def _layouts(engine: str, ranks: int) -> list[Layout]:
    if ranks == 1:
        return [Layout()]
    if engine == "vLLM-Omni":
        return [Layout(tp=ranks), Layout(cfg=2, ulysses=ranks // 2)]
    return [Layout(gather=ranks)]


def predict(row: Row, engine: Engine) -> float:
    """Seconds of a cell."""
    rank = _rank(row.model, 1 if engine.own_split else row.layout.tp)
    width, height = SIZES[row.resolution]
    video = row.mode != "t2i"
    work = Workload(
        mode="text-to-video" if video else "text-to-image",
        width=width,
        height=height,
        frames=189 if video else 1,
        fps=24,
        steps=35 if video else 50,
        guided_steps=35 if video else 41,  # guidance from timestep 1000 to 400 at shift 3
        prompt_tokens=PROMPT_TOKENS,
    )
    gathered = row.ranks if shards_weights(rank, GPUS[row.card], engine) else 1
    machine = Machine(GPUS[row.card], per_node=8)
    return latency_of(
        rank, row.layout, row.residency, work, engine, machine, gathered_weights=gathered
    ).seconds


@cache
def _rank(model: str, tp: int) -> RankModel:
    return RankModel.of(find_model(model), Layout(tp=tp))


def with_factors(engine: Engine, factors: Mapping[str, float]) -> Engine:
    """The engine with other factors."""
    return replace(engine, factors=replace(engine.factors, **factors))


def fit(name: str, rows: Sequence[Row]) -> dict[str, float]:
    """The factors of an engine: first those that videos show, then `launch` from images on one card."""
    video = [row for row in rows if row.mode != "t2i"]
    images = [row for row in rows if row.mode == "t2i" and row.ranks == 1 and row.resolution == "256p"]
    names = FITTED[name]
    engine = with_factors(ENGINES[name], {"launch": 1e-5, **{key: START[key] for key in names}})
    found = _least(video, engine, names)
    launch = _least(images, with_factors(engine, {**found, "launch": 8e-4}), ("launch",))
    return _least(video, with_factors(engine, {**found, **launch}), names) | launch


def _power(name: str, rows: Sequence[Row], fitted: Mapping[str, float]) -> float:
    """The exponent of power, were it fitted with the rest."""
    video = [row for row in rows if row.mode != "t2i"]
    return _least(video, with_factors(ENGINES[name], fitted), (*FITTED[name], "power"))["power"]


def _least(rows: Sequence[Row], engine: Engine, names: Sequence[str]) -> dict[str, float]:
    """Least squares of the logarithm of the ratios, with outliers weighted down; Levenberg and Marquardt."""
    weight = np.array([1.0 if row.is_large else 0.5 for row in rows])

    def errors(x: np.ndarray) -> np.ndarray:
        tried = with_factors(engine, dict(zip(names, np.exp(x).tolist(), strict=True)))
        ratios = [predict(row, tried) / row.seconds for row in rows]
        return np.asarray(weight * np.log(ratios) / WIDE)

    start = np.log([getattr(engine.factors, name) for name in names])
    return dict(zip(names, np.exp(_marquardt(errors, start)).tolist(), strict=True))


def _marquardt(errors: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> np.ndarray:
    prior = 0.1  # of ln 1 each: what the rows say nothing about stays where it was
    x, damping = start.copy(), 1e-2

    def cost(e: np.ndarray, at: np.ndarray) -> float:
        return float(np.sum(np.sqrt(1 + e**2) - 1) + 0.5 * prior**2 * np.sum((at - start) ** 2))

    e = errors(x)
    for _ in range(60):
        step = 2e-3
        slopes = np.stack([(errors(x + step * axis) - e) / step for axis in np.eye(len(x))], axis=1)
        robust = 1 / np.sqrt(1 + e**2)
        normal = slopes.T @ (slopes * robust[:, None]) + prior**2 * np.eye(len(x))
        downhill = slopes.T @ (robust * e) + prior**2 * (x - start)
        for _ in range(12):
            move = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill).clip(-0.5, 0.5)
            better = errors(x + move)
            if cost(better, x + move) < cost(e, x):
                break
            damping *= 3
        else:
            break
        gained = cost(e, x) - cost(better, x + move)
        x, e, damping = x + move, better, max(damping / 5, 1e-6)
        if gained < 1e-7:
            break
    return np.asarray(x)


if __name__ == "__main__":
    main()
