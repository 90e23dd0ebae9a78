"""Scores a checkpoint by the stock pipeline: what do its clips of held-out prompts show?

Run as `python -m toy.evaluate CHECKPOINT`; prints one JSON document. Prompts are of combinations of
shape, colour and motion that training never saw. The scores with the prompts shuffled say what chance
would give.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from diffusers import Cosmos3OmniModularPipeline

from toy.clips import FPS, NUM_FRAMES, SIZE, Clip, Frames, draw, render
from toy.measure import score

STEPS = 16
GUIDANCE = 3.0


class Report(TypedDict):
    """Scores of one evaluation, each a share of the prompts."""

    prompts: int
    num_inference_steps: int
    guidance_scale: float
    scores: dict[str, float]
    shuffled: dict[str, float]


def load(checkpoint: Path) -> Cosmos3OmniModularPipeline:
    """The stock pipeline, without its safety checker and progress bars."""
    pipeline = Cosmos3OmniModularPipeline.from_pretrained(checkpoint)
    pipeline.load_components(dtype=torch.float32)
    pipeline.disable_safety_checker()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def generate(
    pipeline: Cosmos3OmniModularPipeline, clip: Clip, seed: int, *, from_image: bool = False
) -> Frames:
    """A clip of this clip's caption, and of its first frame with `from_image`."""
    image = {"image": torch.from_numpy(render(clip)[0]).permute(2, 0, 1)} if from_image else {}
    videos = pipeline(
        prompt=clip.caption,
        num_frames=NUM_FRAMES,
        height=SIZE,
        width=SIZE,
        fps=float(FPS),
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        generator=torch.Generator("cpu").manual_seed(seed),
        output_type="np",
        output="videos",
        **image,
    )
    frames: Frames = np.rint(np.asarray(videos) * 255).astype(np.uint8)
    return frames


def evaluate(checkpoint: Path, count: int, *, from_image: bool = False) -> tuple[Report, list[Frames]]:
    """The report over `count` held-out prompts, and the clips themselves."""
    pipeline = load(checkpoint)
    clips = [draw(seed, "held-out") for seed in range(count)]
    seen = [generate(pipeline, clip, seed, from_image=from_image) for seed, clip in enumerate(clips)]
    order = np.random.default_rng(0).permutation(count)
    report = Report(
        prompts=count,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        scores=score(seen, [clip.labels for clip in clips])._asdict(),
        shuffled=score(seen, [clips[i].labels for i in order])._asdict(),
    )
    return report, seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument(
        "--from-image", action="store_true", help="image-to-video from each clip's first frame"
    )
    torch.set_num_threads(1)
    options = parser.parse_args()
    print(json.dumps(evaluate(options.checkpoint, options.count, from_image=options.from_image)[0], indent=2))
