"""Predicted seconds: against NVIDIA's published cells, and that they move the right way."""

import csv
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armillary.advisor.ask import ask, question_about
from armillary.advisor.engines import ENGINES
from armillary.advisor.hardware import GPUS, Gpu
from armillary.advisor.latency import sustained
from armillary.advisor.option import Option
from armillary.layout import Layout
from armillary.residency import Residency

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "cosmos3_latency.csv"
CARDS = {
    "RTX PRO 6000 Blackwell": "rtx-pro-6000",
    "H20": "h20",
    "H100 NVL": "h100-nvl",
    "H100 80GB HBM3": "h100-80gb",
    "H200 141GB HBM3": "h200-141gb",
}
SIZES = {"480p": "832x480", "720p": "1280x720"}


def judged(model: str, gpu: Gpu, *, engine: str = "armillary", **arguments: Any) -> Option:
    """The option of the first residency, weights on the device, for a fixed layout."""
    layout = arguments.pop("layout", {"tp": 1})
    answer = ask(model, gpu, engine=engine, layout=layout, residency={"prefetch": 1}, **arguments)
    return answer.options[0]


def cells(engine: str) -> Iterator[Mapping[str, str]]:
    with DATA.open() as file:
        for cell in csv.DictReader(file):
            if cell["engine"] == engine and cell["mode"] == "t2v" and cell["resolution"] in SIZES:
                yield cell


@pytest.mark.parametrize(("engine", "count"), [("vLLM-Omni", 35), ("PyTorch", 37), ("Diffusers", 12)])
def test_published_videos_are_met(engine: str, count: int) -> None:
    errors = []
    for cell in cells(engine):
        request = {"size": SIZES[cell["resolution"]]}
        question = question_about(cell["model"], GPUS[CARDS[cell["gpu"]]], engine.lower(), request)
        option = question.evaluate(Layout(tp=int(cell["gpus"])), Residency())
        errors.append(abs(option.latency.seconds / float(cell["seconds"]) - 1))
    assert len(errors) == count
    assert statistics.median(errors) <= 0.10
    assert statistics.quantiles(errors, n=10)[-1] <= 0.25


def test_at_most_eight_factors_are_chosen_for_an_engine() -> None:
    for name in ("vllm-omni", "pytorch", "diffusers"):
        factors = ENGINES[name].factors
        neutral = {"link": 1.0, "reduce": 1.0, "overlap": 1.0, "portable": None}
        chosen = [key for key, value in vars(factors).items() if neutral.get(key, object()) != value]
        assert len(chosen) <= 8, chosen


def test_no_board_is_faster_than_its_peak() -> None:
    for gpu in GPUS.values():
        assert 0 < sustained(gpu, 0.7, 1 / 3) <= gpu.tflops * 1e12


def test_the_parts_add_up_to_the_request() -> None:
    latency = judged("Cosmos3-Super", GPUS["h100-80gb"], layout={"cfg": 2, "tp": 4}).latency
    assert sum(latency.parts.values()) == pytest.approx(latency.seconds)
    assert 35 * latency.seconds_per_step < latency.seconds


def test_guidance_parallelism_halves_the_steps_and_nothing_else() -> None:
    one, two = (judged("Cosmos3-Nano", GPUS["h100-80gb"], layout={"cfg": n}) for n in (1, 2))
    assert two.latency.parts["linear"] == pytest.approx(one.latency.parts["linear"] / 2)
    assert two.latency.parts["request"] == one.latency.parts["request"]


def test_offloaded_layers_are_hidden_behind_a_video_and_not_behind_a_picture() -> None:
    def on_the_way(**request: Any) -> float:
        answer = ask(
            "Cosmos3-Super",
            GPUS["h100-80gb"],
            layout={"tp": 1},
            residency={"offload": "host"},
            request=request,
        )
        latency = answer.options[0].latency
        return latency.parts["weights on the way"] / latency.seconds

    assert on_the_way() < 0.01
    assert on_the_way(mode="text-to-image") > 0.5


def test_an_axis_that_leaves_the_machine_pays_for_the_slower_link() -> None:
    gpu = replace(GPUS["h100-80gb"], node_link=GPUS["h100-80gb"].link / 10)
    near, far = (
        judged("Cosmos3-Super", gpu, layout={"tp": 8}, counts=[8], nodes=nodes).latency.parts["collectives"]
        for nodes in (1, 2)
    )
    assert far == pytest.approx(10 * near)
