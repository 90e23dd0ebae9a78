"""Models of the other families: what ships is what the classes are, and what is known of them is told."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from armillary.advisor.ask import ask
from armillary.advisor.hardware import GPUS
from armillary.advisor.model import find_model
from armillary.advisor.option import RESIDENCIES
from armillary.advisor.rank import RankModel
from armillary.advisor.report import as_json
from armillary.advisor.shipped import diffusers
from armillary.errors import ArmillaryError
from armillary.layout import Layout
from armillary.models.meta import build, skeleton_on_meta

BILLIONS = {
    "black-forest-labs/FLUX.1-dev": 11.9,
    "stabilityai/stable-diffusion-3.5-large": 8.1,
    "Qwen/Qwen-Image": 20.4,
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": 14.3,
    "hunyuanvideo-community/HunyuanVideo": 12.8,
}
"""Published sizes of the transformers."""


@pytest.mark.parametrize("name", diffusers())
def test_a_shipped_skeleton_is_that_of_its_class(name: str) -> None:
    entry = diffusers()[name]
    real = skeleton_on_meta(entry["model_class"], entry["transformer"], "bfloat16")
    shipped = find_model(name).skeleton
    assert dict(shipped.parameters) == dict(real.parameters)
    assert shipped.heads == real.heads


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_sizes_are_the_published_ones(name: str, billions: float) -> None:
    count = sum(p.nbytes // p.itemsize for p in find_model(name).skeleton.parameters.values())
    assert count / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_forwards_operations_are_those_that_torch_counts() -> None:
    answer = ask("Wan2.1-T2V-1.3B-Diffusers", GPUS["h100-80gb"], counts=[1], request={"num_frames": 5})
    rank, workload = answer.question.rank(Layout()), answer.question.workload
    entry = diffusers()["Wan-AI/Wan2.1-T2V-1.3B-Diffusers"]
    with torch.device("meta"):
        model = build(entry["model_class"], entry["transformer"]).eval()
        frames, height, width = rank.latents(workload)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(
                hidden_states=torch.zeros(1, 16, frames, height, width),
                timestep=torch.zeros(1),
                encoder_hidden_states=torch.zeros(1, 512, 4096),
            )
    work = rank.work(workload, rank.shape(workload, context=1))
    assert rank.layers * (work.linear + work.attention) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_tp_divides_weights_and_work() -> None:
    model = find_model("FLUX.1-dev")
    one, four = (RankModel.of(model, Layout(tp=tp)) for tp in (1, 4))
    device = RESIDENCIES["device"]
    share = four.weights(device, leave_out=False).device / one.weights(device, leave_out=False).device
    assert 0.25 < share < 0.5  # what modulates is whole on every rank


def test_the_answer_says_what_is_not_known() -> None:
    told = as_json(ask("FLUX.1-dev", GPUS["h100-80gb"], counts=[2]))
    (first, *_) = told["layouts"]
    assert first["layout"]["tp"] == 2
    assert list(first["commands"]) == ["diffusers"]
    assert any("decode of this family is not counted" in line for line in told["advice"])


def test_other_axes_engines_and_modes_are_refused_with_the_reason() -> None:
    h100 = GPUS["h100-80gb"]
    for arguments in (
        {"layout": {"ulysses": 2}},
        {"layout": {"tp": 2}, "engine": "vllm-omni"},
        {"request": {"mode": "text-to-video"}},
        {"residency": {"offload": "host"}},
    ):
        with pytest.raises(ArmillaryError):
            ask("FLUX.1-dev", h100, **arguments)
