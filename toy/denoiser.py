"""Trains the toy world's transformer, a small stock `Cosmos3OmniTransformer`, by flow matching.

Run as `python -m toy.denoiser OUT` once `python -m toy.vae OUT` has finished its encoder (`OUT/vae`
exists). Clips are encoded once. Prompts are the pipeline's own texts, now and then that of the empty
negative prompt, so that guidance means something. A share of the clips has its first, or first two,
latent frames clean: image- and video-to-video.
"""

from __future__ import annotations

import csv
import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from torch import Tensor

from toy.batched import Prompts, predict_velocity
from toy.clips import FPS, NUM_FRAMES, captions, combinations, draw, image_caption, render
from toy.measure import Scores, score
from toy.team import Team, run as start
from toy.vae import LATENT_CHANNELS, to_frames, to_pixels
from toy.words import FRAME_RATES, VOCABULARY, prompt_ids, write_tokenizer

SEED = 5
STEPS = 3500
BATCH = 32
LEARNING_RATE = 2e-3
NUM_CLIPS = 576  # 6 of every combination
CONFIG: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "latent_channel": LATENT_CHANNELS,
    "latent_patch_size": 2,
    "patch_latent_dim": LATENT_CHANNELS * 2 * 2,
    # heads of 16 have 8 rotary pairs, and positions are few: slow frequencies would stand still
    "rope_theta": 100.0,
    "rope_axes_dim": [4, 2, 2],
    "unified_3d_mrope_temporal_modality_margin": 8,
    # 1000 sigma times this is the fastest timestep wave's angle; 0.001 would leave all waves almost straight
    "timestep_scale": 0.05,
    "vocab_size": VOCABULARY,
}
_IMAGE_EVERY = 12  # one batch in twelve is of still pictures
_DROP_PROMPT = 0.15
_CLEAN_FRAMES = (0.8, 0.15, 0.05)  # shares of clips with no, one and two clean latent frames
_SHIFT = 3.0  # of the noise levels, as in generation
_SAVE_EVERY_S = 60.0
_REPORT_EVERY = 250  # steps


@dataclass(frozen=True)
class Texts:
    """Token ids of every training prompt and of its empty negative, by labels, frame rate and wording."""

    video: dict[tuple[tuple[str, str, str], float], list[list[int]]]
    image: dict[tuple[str, str, str], list[int]]
    no_video: dict[float, list[int]]
    no_image: list[int]


def write_texts(tokenizer: Path) -> Texts:
    """Tokenizes what the pipeline would build for the training combinations."""
    keys = [(labels, float(fps)) for labels in combinations("train") for fps in FRAME_RATES]
    prompts = [(text, NUM_FRAMES, key[1]) for key in keys for text in captions(*key[0])]
    images = [(image_caption(*labels[:2]), 1, float(FPS)) for labels in combinations("train")]
    ids = iter(prompt_ids(tokenizer, prompts + images))
    video = {key: [next(ids) for _ in captions(*key[0])] for key in keys}
    image = {labels: next(ids) for labels in combinations("train")}
    return Texts(
        video={key: [with_text for with_text, _ in wordings] for key, wordings in video.items()},
        image={labels: with_text for labels, (with_text, _) in image.items()},
        no_video={fps: wordings[0][1] for (_, fps), wordings in video.items()},
        no_image=next(iter(image.values()))[1],
    )


@torch.no_grad()
def encode_clips(vae: AutoencoderKLWan, cache: Path) -> None:
    """Writes the normalized latents [clip, C, T, H, W] of the training seeds into a file, once."""
    if cache.exists():
        return
    chunks = []
    for first in range(0, NUM_CLIPS, 8):
        pixels = torch.stack([to_pixels(render(draw(first + i))) for i in range(8)])
        chunks.append(vae.encode(pixels).latent_dist.mode())
    torch.save(normalize(vae, torch.cat(chunks)), cache)


def normalize(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """To zero mean and unit deviation per channel, as the pipeline hands latents to the transformer."""
    mean, std = (
        torch.tensor(vae.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    return (latents - mean) / std


def denormalize(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """The way back, before decoding."""
    mean, std = (
        torch.tensor(vae.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    return latents * std + mean


def loss_at(model: Cosmos3OmniTransformer, latents: Tensor, texts: Texts, step: int, team: Team) -> Tensor:
    """Flow matching loss of this process's share of a step's batch, which depends on the step only."""
    rng = np.random.default_rng([SEED, step, team.rank])
    size = len(team.share(BATCH))
    picked = rng.integers(len(latents), size=size)
    clips = [draw(int(i)).labels for i in picked]
    x0 = latents[torch.from_numpy(picked)]
    if step % _IMAGE_EVERY == 0:
        x0, fps = x0[:, :, :1], [float(FPS)] * size
        ids = [texts.no_image if rng.random() < _DROP_PROMPT else texts.image[each] for each in clips]
        clean = np.zeros(size, dtype=np.int64)
    else:
        fps = [float(value) for value in rng.choice(FRAME_RATES, size=size)]
        ids = [_words(texts, *pair, rng) for pair in zip(clips, fps, strict=True)]
        clean = rng.choice(len(_CLEAN_FRAMES), size=size, p=_CLEAN_FRAMES)
    uniform = torch.from_numpy(rng.random(size)).float()
    sigma = _SHIFT * uniform / (1 + (_SHIFT - 1) * uniform)
    noise = team.noise(x0, step)
    noisy = torch.arange(x0.shape[2]) >= torch.from_numpy(clean)[:, None]  # [B, T]
    mask = noisy[:, None, :, None, None]
    level = sigma.view(-1, 1, 1, 1, 1) * mask
    velocity = predict_velocity(model, (1 - level) * x0 + level * noise, sigma, noisy, Prompts.pad(ids, fps))
    error = ((velocity - (noise - x0)) * mask).square().sum()
    loss: Tensor = error / (mask.sum() * x0[0, :, 0].numel())
    return loss


def _words(texts: Texts, labels: tuple[str, str, str], fps: float, rng: np.random.Generator) -> list[int]:
    if rng.random() < _DROP_PROMPT:
        return texts.no_video[fps]
    wordings = texts.video[labels, fps]
    return wordings[int(rng.integers(len(wordings)))]


@torch.no_grad()
def quick_score(
    model: Cosmos3OmniTransformer, vae: AutoencoderKLWan, tokenizer: Path, count: int = 48
) -> Scores:
    """Held-out scores of a short batched generation (Euler, 12 steps, guidance 3): a look during training."""
    clips = [draw(seed, "held-out") for seed in range(count)]
    pairs = prompt_ids(tokenizer, [(clip.caption, NUM_FRAMES, FPS) for clip in clips])
    fps = [float(FPS)] * count
    with_text, without = (Prompts.pad([pair[i] for pair in pairs], fps) for i in range(2))
    x = torch.randn(count, LATENT_CHANNELS, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    noisy = torch.ones(count, 3, dtype=torch.bool)
    uniform = torch.linspace(1, 0, 13)
    levels = _SHIFT * uniform / (1 + (_SHIFT - 1) * uniform)
    for level, following in pairwise(levels):
        sigma = level.expand(count)
        guided, free = (predict_velocity(model, x, sigma, noisy, p) for p in (with_text, without))
        x = x + (following - level) * (free + 3.0 * (guided - free))
    pixels = torch.cat([vae.decode(part).sample for part in denormalize(vae, x).split(8)])
    return score(list(to_frames(pixels)), [clip.labels for clip in clips])


class Run:
    """A training run that saves itself: model, averaged weights, optimizer and step."""

    def __init__(self, out: Path) -> None:
        self.state_file = out / "denoiser-run.pt"
        torch.manual_seed(SEED)
        self.model, self.averaged = Cosmos3OmniTransformer(**CONFIG), Cosmos3OmniTransformer(**CONFIG)
        self.averaged.load_state_dict(self.model.state_dict())
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
        self.step, self.saved_at = 0, time.monotonic()
        if self.state_file.exists():
            state = torch.load(self.state_file)
            self.model.load_state_dict(state["model"])
            self.averaged.load_state_dict(state["averaged"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def advance(self, loss: Tensor, team: Team) -> None:
        """One step of the optimizer, and of the averaged weights towards the trained ones."""
        fade = min(1.0, (self.step + 1) / 200, max(0.02, 2.0 * (1 - self.step / STEPS)))
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * fade
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        team.average_gradients(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        share = max(0.003, 1.0 / (1 + self.step))
        with torch.no_grad():
            for target, source in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                target.lerp_(source, share)

    def save(self, *, force: bool) -> None:
        """Saves when the last time is a minute ago, or with `force`."""
        if not force and time.monotonic() - self.saved_at < _SAVE_EVERY_S:
            return
        parts = {"model": self.model, "averaged": self.averaged, "optimizer": self.optimizer}
        state = {name: part.state_dict() for name, part in parts.items()} | {"step": self.step}
        torch.save(state, self.state_file.with_suffix(".part"))
        self.state_file.with_suffix(".part").replace(self.state_file)
        self.saved_at = time.monotonic()


def train(out: Path, team: Team) -> None:
    """All steps; `OUT/denoiser.csv` gets a row every 250 steps, `OUT/transformer` the averaged weights."""
    tokenizer, cache = out / "text_tokenizer", out / "latents.pt"
    if team.rank == 0:
        write_tokenizer(tokenizer)
        encode_clips(AutoencoderKLWan.from_pretrained(out / "vae"), cache)
    team.wait()
    texts, latents = write_texts(tokenizer), torch.load(cache)
    run, losses = Run(out), []
    while run.step < STEPS:
        loss = loss_at(run.model, latents, texts, run.step, team)
        run.advance(loss, team)
        losses.append(loss.item())
        if team.rank > 0:
            continue
        run.save(force=run.step == STEPS)
        if run.step % _REPORT_EVERY == 0:
            # read again: its decoder may have been trained further meanwhile
            vae = AutoencoderKLWan.from_pretrained(out / "vae")
            scores = quick_score(run.averaged, vae, tokenizer)
            _report(out / "denoiser.csv", run.step, float(np.mean(losses)), scores)
            losses.clear()
            run.averaged.save_pretrained(out / "transformer")


def _report(log: Path, step: int, loss: float, scores: Scores) -> None:
    row = {"step": step, "loss": round(loss, 5)}
    row |= {name: round(share, 3) for name, share in scores._asdict().items()}
    is_new = not log.exists()
    with log.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    start(train, __doc__)
