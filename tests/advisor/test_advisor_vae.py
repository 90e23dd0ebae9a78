"""Operations and weights of the VAE's decoder, beside the real class on meta."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch.utils.flop_counter import FlopCounterMode

from armillary.advisor.memory import DIVIDED_FROM
from armillary.advisor.model import find_model
from armillary.advisor.vae import decode_cost, weight_count
from armillary.parallel.vae import WORTHWHILE_PIXELS
from live_bytes import measured

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "cosmos 3": find_model("nvidia/Cosmos3-Nano").vae,
    "wan 2.1": {},
    "small": {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "temperal_downsample": [True, False]},
}


def on_meta(name: str) -> Any:
    settings = {key: value for key, value in CONFIGS[name].items() if key != "_class_name"}
    with torch.device("meta"):
        return AutoencoderKLWan(**settings)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("latents", [(1, 8, 10), (3, 6, 8)])
def test_operations_are_those_of_the_real_decoder(name: str, latents: tuple[int, int, int]) -> None:
    vae = on_meta(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vae.decode(torch.zeros(1, vae.config.z_dim, *latents, device="meta"))
    assert decode_cost(CONFIGS[name], latents, 2).operations == counter.get_total_flops()


@pytest.mark.parametrize(("dim", "latents"), [(32, (3, 12, 12)), (24, (4, 8, 20))])
def test_the_peak_of_a_decode_is_met(dim: int, latents: tuple[int, int, int]) -> None:
    settings = {**CONFIGS["cosmos 3"], "base_dim": 8, "decoder_base_dim": dim}
    del settings["_class_name"]
    # in half precision: in float32 the CPU's convolution unfolds its input, which no GPU does
    vae = AutoencoderKLWan(**settings).eval().to(torch.bfloat16)
    with torch.no_grad():
        peak = measured(lambda: vae.decode(torch.zeros(1, 48, *latents, dtype=torch.bfloat16)))
    told = decode_cost(settings, latents, 2)
    assert told.working_bytes + 2 * told.clip_bytes == pytest.approx(peak, rel=0.15)


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_those_of_the_real_class_but_for_its_norms(name: str) -> None:
    real = sum(parameter.numel() for parameter in on_meta(name).parameters())
    assert weight_count(CONFIGS[name]) == pytest.approx(real, rel=0.005)


def test_the_decode_is_divided_from_the_size_on_that_the_engine_divides_it() -> None:
    assert DIVIDED_FROM == WORTHWHILE_PIXELS
