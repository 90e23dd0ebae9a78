"""Trains the toy world's video autoencoder, a small stock `AutoencoderKLWan` (8x in space, 4x in time).

Run as `python -m toy.vae OUT`. Three phases: small crops around the shape (cheap, and colour and edges
fill the picture), whole clips, then the decoder alone: from there on latents no longer change, so the
transformer may train beside it on `OUT/vae`. A stopped run goes on from its last saved minute; batches
depend on the step only.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from torch import Tensor

from toy.clips import NUM_FRAMES, SIZE, Frames, draw, render
from toy.measure import Scores, score
from toy.team import Team, run as start

SEED = 3
LATENT_CHANNELS = 8
CONFIG: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 12,  # 3 colours x 2 x 2 pixels of a patch
    "out_channels": 12,
    "base_dim": 16,
    "z_dim": LATENT_CHANNELS,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "is_residual": True,
    "scale_factor_spatial": 8,
    "scale_factor_temporal": 4,
}
_LATENT_NOISE = 0.05  # keeps neighbouring latents decodable, so a denoiser's small errors stay small
_LATENT_PULL = 5e-4  # and the latents from growing to drown that noise
_FOREGROUND_WEIGHT = 4.0
_SAVE_EVERY_S = 60.0
_REPORT_EVERY = 100  # steps


@dataclass(frozen=True)
class Phase:
    """A stretch of training: `steps` batches of `batch` clips, cut to `crop` pixels around the shape."""

    name: str
    steps: int
    batch: int
    crop: int
    learning_rate: float
    train_encoder: bool = True


PHASES = (
    Phase("crops", steps=900, batch=8, crop=32, learning_rate=2e-3),
    Phase("decoder on crops", steps=400, batch=8, crop=32, learning_rate=1.5e-3, train_encoder=False),
    Phase("decoder on clips", steps=300, batch=4, crop=SIZE, learning_rate=1e-3, train_encoder=False),
)


def build() -> AutoencoderKLWan:
    """The untrained autoencoder; its latent statistics are measured later."""
    torch.manual_seed(SEED)
    return AutoencoderKLWan(
        **CONFIG, latents_mean=[0.0] * LATENT_CHANNELS, latents_std=[1.0] * LATENT_CHANNELS
    )


def to_pixels(frames: Frames) -> Tensor:
    """uint8 [..., time, height, width, 3] to float [..., 3, time, height, width] in [-1, 1]."""
    return torch.from_numpy(frames).movedim(-1, -4).float() / 127.5 - 1.0


def to_frames(pixels: Tensor) -> Frames:
    """The way back, rounded as the pipeline's video processor rounds."""
    scaled = ((pixels.movedim(-4, -1) / 2 + 0.5).clamp(0, 1) * 255).round()
    frames: Frames = scaled.to(torch.uint8).numpy()
    return frames


def decode_unclamped(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """`vae.decode` without its last clamp, which has no gradient where training needs one most."""
    vae.clear_cache()
    hidden = vae.post_quant_conv(latents)
    chunks = []
    for index in range(hidden.shape[2]):
        vae._conv_idx = [0]
        chunk = hidden[:, :, index : index + 1]
        chunks.append(
            vae.decoder(chunk, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=index == 0)
        )
    vae.clear_cache()
    pixels: Tensor = unpatchify(torch.cat(chunks, dim=2), patch_size=CONFIG["patch_size"])
    return pixels


def batch(phase: Phase, step: int, team: Team) -> Tensor:
    """This process's pixels of a step, [samples, 3, time, crop, crop]; 5 frames every other step."""
    first = step * phase.batch
    rng = np.random.default_rng([SEED, step])
    num_frames = NUM_FRAMES if step % 2 else 5
    cuts = [_cut(first + i, phase.crop, rng)[:num_frames] for i in range(phase.batch)]
    return torch.stack([to_pixels(cuts[i]) for i in team.share(phase.batch)])


def _cut(seed: int, crop: int, rng: np.random.Generator) -> Frames:
    clip = draw(seed)
    frames = render(clip)
    if crop == SIZE:
        return frames
    middle = np.array(clip.start) + 4 * np.array(clip.velocity)
    left, top = np.clip(np.rint(middle + rng.uniform(-14, 14, 2)).astype(int) - crop // 2, 0, SIZE - crop)
    return frames[:, top : top + crop, left : left + crop]


def loss_of(vae: AutoencoderKLWan, pixels: Tensor, step: int, team: Team) -> Tensor:
    """Weighted pixel distance after a round trip through slightly noisy latents."""
    latents = vae.encode(pixels).latent_dist.mode()
    noisy = latents + _LATENT_NOISE * team.noise(latents, step)
    distance = decode_unclamped(vae, noisy) - pixels
    weight = 1.0 + _FOREGROUND_WEIGHT * (pixels.abs().amax(dim=1, keepdim=True) > 0.1)
    pixel_loss = (weight * (distance.square() + 0.2 * distance.abs())).mean()
    loss: Tensor = pixel_loss + _LATENT_PULL * latents.square().mean()
    return loss


@torch.no_grad()
def round_trip(vae: AutoencoderKLWan, count: int = 24) -> tuple[Scores, float]:
    """The measure on held-out clips after encode and decode, and their PSNR in decibels."""
    clips = [draw(seed, "held-out") for seed in range(count)]
    pixels = torch.stack([to_pixels(render(clip)) for clip in clips])
    back = torch.cat([vae.decode(vae.encode(part).latent_dist.mode()).sample for part in pixels.split(8)])
    error = (back - pixels).square().mean().item() / 4  # the range is 2 wide
    return score(list(to_frames(back)), [clip.labels for clip in clips]), -10 * float(np.log10(error))


@torch.no_grad()
def measure_latents(vae: AutoencoderKLWan, count: int = 96) -> None:
    """Puts each latent channel's mean and standard deviation over training clips into the config."""
    pixels = torch.stack([to_pixels(render(draw(seed))) for seed in range(count)])
    latents = torch.cat([vae.encode(part).latent_dist.mode() for part in pixels.split(16)])
    mean, std = latents.mean(dim=(0, 2, 3, 4)), latents.std(dim=(0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())


class Run:
    """A training run that saves itself: model, averaged weights, optimizer and step."""

    def __init__(self, out: Path) -> None:
        self.out, self.state_file = out, out / "vae-run.pt"
        self.vae, self.averaged = build(), build()
        self.optimizer = torch.optim.AdamW(self.vae.parameters(), betas=(0.9, 0.98), weight_decay=1e-4)
        self.step, self.saved_at = 0, time.monotonic()
        if self.state_file.exists():
            state = torch.load(self.state_file)
            self.vae.load_state_dict(state["vae"])
            self.averaged.load_state_dict(state["averaged"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def save(self, *, force: bool) -> None:
        """Saves when the last time is a minute ago, or with `force`."""
        if not force and time.monotonic() - self.saved_at < _SAVE_EVERY_S:
            return
        parts = {"vae": self.vae, "averaged": self.averaged, "optimizer": self.optimizer}
        state = {name: part.state_dict() for name, part in parts.items()} | {"step": self.step}
        torch.save(state, self.state_file.with_suffix(".part"))
        self.state_file.with_suffix(".part").replace(self.state_file)
        self.saved_at = time.monotonic()

    def average(self) -> None:
        """Moves the averaged weights a little, and more at first, towards the trained ones."""
        share = max(0.02, 1.0 / (1 + self.step))
        with torch.no_grad():
            for target, source in zip(self.averaged.parameters(), self.vae.parameters(), strict=True):
                target.lerp_(source, share)


def schedule() -> Iterator[tuple[Phase, int]]:
    """Every step's phase, and its number within the phase."""
    for phase in PHASES:
        for index in range(phase.steps):
            yield phase, index


def train(out: Path, team: Team) -> None:
    """All phases; `OUT/vae` is written after every phase and `OUT/vae.csv` gets a row every 100 steps."""
    run = Run(out)
    for step, (phase, index) in enumerate(schedule()):
        if step < run.step:
            continue
        if index == 0:
            _begin(run, phase)
        fade = min(1.0, (index + 1) / 50, max(0.05, 1.5 * (1 - index / phase.steps)))
        for group in run.optimizer.param_groups:
            group["lr"] = phase.learning_rate * fade
        loss = loss_of(run.vae, batch(phase, step, team), step, team)
        run.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        team.average_gradients(run.vae.parameters())
        torch.nn.utils.clip_grad_norm_(run.vae.parameters(), 1.0)
        run.optimizer.step()
        run.step = step + 1
        run.average()
        if team.rank == 0:
            _keep(run, phase, loss.item(), ends=index == phase.steps - 1)


def _keep(run: Run, phase: Phase, loss: float, *, ends: bool) -> None:
    """Saves and reports now and then; at a phase's end, writes the averaged weights and latent scale."""
    run.save(force=ends)
    if ends or run.step % _REPORT_EVERY == 0:
        _report(run, phase, loss)
    if ends:
        measure_latents(run.averaged)
        run.averaged.save_pretrained(run.out / "vae")


def _begin(run: Run, phase: Phase) -> None:
    """The encoder that is left alone from here on is the averaged one: its latents are the ones handed on."""
    if not phase.train_encoder:
        run.vae.load_state_dict(run.averaged.state_dict())
    for module in (run.vae.encoder, run.vae.quant_conv):
        module.requires_grad_(phase.train_encoder)


def _report(run: Run, phase: Phase, loss: float) -> None:
    scores, decibels = round_trip(run.averaged)
    row = {"step": run.step, "phase": phase.name, "loss": round(loss, 5), "psnr": round(decibels, 2)}
    row |= {name: round(share, 3) for name, share in scores._asdict().items()}
    log = run.out / "vae.csv"
    is_new = not log.exists()
    with log.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    start(train, __doc__)
