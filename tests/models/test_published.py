"""The published checkpoints that are known by name have the size that they are known to have."""

from functools import cache
from math import prod

import pytest

from armillary import Layout, resolve
from armillary.models.coverage import split_fraction
from armillary.models.published import published
from armillary.models.registry import families
from armillary.plan.skeleton import Skeleton

BILLIONS = {
    "fal/AuraFlow-v0.3": 6.8,
    "lodestones/Chroma1-HD": 8.9,
    "THUDM/CogVideoX-2b": 1.7,
    "THUDM/CogVideoX-5b": 5.6,
    "THUDM/CogVideoX1.5-5B": 5.6,
    "black-forest-labs/FLUX.2-dev": 32.2,
    "black-forest-labs/FLUX.1-dev": 11.9,
    "black-forest-labs/FLUX.1-schnell": 11.9,
    "HiDream-ai/HiDream-I1-Full": 17.1,
    "hunyuanvideo-community/HunyuanVideo-1.5-480p_t2v": 8.3,
    "hunyuanvideo-community/HunyuanVideo": 12.8,
    "Lightricks/LTX-2": 18.9,
    "Lightricks/LTX-Video": 1.9,
    "Lightricks/LTX-Video-0.9.7-dev": 13.0,
    "Qwen/Qwen-Image": 20.4,
    "stabilityai/stable-diffusion-3-medium-diffusers": 2.1,
    "stabilityai/stable-diffusion-3.5-medium": 2.5,
    "stabilityai/stable-diffusion-3.5-large": 8.1,
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": 1.4,
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": 14.3,
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers": 16.4,
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": 14.3,
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": 14.3,
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": 5.0,
    "Wan-AI/Wan2.1-VACE-14B-diffusers": 17.3,
    "Wan-AI/Wan2.1-VACE-1.3B-diffusers": 2.1,
    "Tongyi-MAI/Z-Image-Turbo": 6.2,
}
"""Parameters of the transformers as published; of Stable Diffusion with the table of positions."""


@cache
def skeleton_of(name: str) -> Skeleton:
    return published()[name].skeleton()


@pytest.mark.parametrize("name", BILLIONS)
def test_a_published_checkpoint_has_its_known_size(name: str) -> None:
    parameters = skeleton_of(name).parameters.values()
    assert sum(prod(p.shape) for p in parameters) / 1e9 == pytest.approx(BILLIONS[name], abs=0.06)


@pytest.mark.parametrize("name", published())
def test_a_published_checkpoint_can_be_split_over_two_ranks(name: str) -> None:
    resolved = resolve(skeleton_of(name), Layout(tp=2))
    assert split_fraction(resolved) >= 0.9
    assert abs(resolved.bytes_on(0) - resolved.bytes_on(1)) <= 1 << 20


def test_every_family_but_cosmos_has_a_published_checkpoint() -> None:
    assert {one.model_class for one in published().values()} == {*families()} - {"Cosmos3OmniTransformer"}
