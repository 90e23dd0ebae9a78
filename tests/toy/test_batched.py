from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniModularPipeline, Cosmos3OmniTransformer
from torch import Tensor
from toy.batched import Prompts, predict_velocity
from toy.denoiser import CONFIG
from toy.vae import LATENT_CHANNELS, build
from toy.words import prompt_ids, write_tokenizer

FPS = (8.0, 24.0)


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    prompts = [("a red circle moving left", 9, FPS[0]), ("Two unknown words", 9, FPS[1])]
    return [with_text for with_text, _ in prompt_ids(folder, prompts)]


@pytest.fixture(scope="module")
def model() -> Cosmos3OmniTransformer:
    torch.manual_seed(0)
    return Cosmos3OmniTransformer(**CONFIG)


def stock_velocity(
    model: Cosmos3OmniTransformer,
    vae: AutoencoderKLWan,
    latents: Tensor,
    sigma: float,
    ids: list[int],
    fps: float,
    clean: int,
) -> Tensor:
    """One sample as the pipeline runs it: its own segments, the model's own forward and attention."""
    pipeline = Cosmos3OmniModularPipeline()
    pipeline.update_components(transformer=model, vae=vae)
    model.set_attn_processor(model.layers[0].self_attn._default_processor_cls())
    text = pipeline._prepare_text_segment(ids, "cpu")
    vision = pipeline._prepare_vision_segment(
        input_vision_tokens=latents,
        has_image_condition=clean > 0,
        mrope_offset=text["vision_start_temporal_offset"],
        vision_fps=fps,
        curr=text["und_len"],
        device="cpu",
        condition_frame_indexes=list(range(clean)),
    )
    names = (
        "vision_token_shapes",
        "vision_sequence_indexes",
        "vision_mse_loss_indexes",
        "vision_noisy_frame_indexes",
    )
    velocity: Tensor = model(
        **{name: text[name] for name in ("input_ids", "text_indexes", "und_len")},
        **{name: vision[name] for name in names},
        position_ids=torch.cat([text["text_mrope_ids"], vision["vision_mrope_ids"]], dim=1),
        sequence_length=text["und_len"] + vision["num_vision_tokens"],
        vision_tokens=[latents],
        vision_timesteps=torch.full((vision["num_noisy_vision_tokens"],), 1000 * sigma),
    ).sample[0]
    return velocity


@torch.no_grad()
def test_a_batch_gives_what_the_stock_model_gives_for_each_sample(
    model: Cosmos3OmniTransformer, ids: list[list[int]]
) -> None:
    latents = torch.randn(2, LATENT_CHANNELS, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    sigma, clean = torch.tensor([0.9, 0.3]), (0, 1)
    noisy = torch.arange(3) >= torch.tensor(clean)[:, None]
    batched = predict_velocity(model, latents, sigma, noisy, Prompts.pad(ids, list(FPS)))
    for i in range(2):
        single = stock_velocity(model, build(), latents[i : i + 1], sigma[i].item(), ids[i], FPS[i], clean[i])
        torch.testing.assert_close(
            batched[i : i + 1, :, clean[i] :], single[:, :, clean[i] :], atol=1e-5, rtol=1e-4
        )
