import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniModularPipeline
from toy.clips import draw
from toy.evaluate import evaluate, generate, load
from toy.measure import score
from toy.vae import round_trip

CHECKPOINT = Path(str(files("armillary") / "assets" / "toy-world"))
CLIPS = [draw(seed, "held-out") for seed in range(0, 24, 2)]  # every shape, colour and motion
LABELS = [clip.labels for clip in CLIPS]


@pytest.fixture(scope="module")
def pipeline() -> Cosmos3OmniModularPipeline:
    return load(CHECKPOINT)


@pytest.fixture(scope="module")
def right(pipeline: Cosmos3OmniModularPipeline) -> float:
    """Share of the clips that show all that their prompts ask for."""
    return score([generate(pipeline, clip, seed) for seed, clip in enumerate(CLIPS)], LABELS).all


def test_held_out_prompts_are_drawn(right: float) -> None:
    assert right >= 0.75


def test_key_and_value_heads_given_to_the_wrong_queries_are_seen_in_the_picture(right: float) -> None:
    broken = load(CHECKPOINT)
    size = broken.transformer.config.head_dim
    with torch.no_grad():
        for layer in broken.transformer.layers:
            for name in ("to_k", "to_v", "add_k_proj", "add_v_proj"):
                weight = getattr(layer.self_attn, name).weight
                weight[: 2 * size] = torch.cat([weight[size : 2 * size], weight[:size]])
    shown = score([generate(broken, clip, seed) for seed, clip in enumerate(CLIPS)], LABELS).all
    assert shown <= right - 0.3


def test_the_autoencoder_keeps_what_the_measure_sees() -> None:
    scores, _ = round_trip(AutoencoderKLWan.from_pretrained(CHECKPOINT / "vae"), count=24)
    assert min(scores) >= 0.95


def test_an_image_is_set_in_motion(pipeline: Cosmos3OmniModularPipeline) -> None:
    shown = [generate(pipeline, clip, seed, from_image=True) for seed, clip in enumerate(CLIPS[:6])]
    assert score(shown, LABELS[:6]).motion >= 0.6


def test_it_loads_from_wherever_it_is_copied(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "moved")
    assert load(tmp_path / "moved").transformer.config.num_attention_heads == 8
    named = [file for file in CHECKPOINT.rglob("*.json") if "_name_or_path" in file.read_text()]
    assert named == [CHECKPOINT / "modular_model_index.json"]  # where it is null


def test_it_is_small_enough_to_ship() -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.rglob("*") if file.is_file()) <= 12e6


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_64_held_out_prompts_reach_the_goal_and_shuffled_ones_are_near_chance() -> None:
    report, _ = evaluate(CHECKPOINT, 64)
    scores, shuffled = report["scores"], report["shuffled"]
    goal = {"colour": 0.90, "shape": 0.85, "motion": 0.90}
    assert all(scores[name] >= least for name, least in goal.items()), scores
    assert (shuffled["shape"], shuffled["colour"], shuffled["motion"]) == pytest.approx(
        (1 / 3, 1 / 8, 1 / 5), abs=0.15
    )
