"""Runs the stock Cosmos 3 transformer on a batch of clips.

The stock forward takes one packed sequence in which all items see each other. Here the same modules and
weights see [batch, length, ...]: the embeddings and heads work on any shape, and the attention processor
below keeps the samples apart and hides the padding of shorter prompts. Shapes: B batch, L prompt tokens,
N vision tokens, C latent channels, T H W latent frames, rows and columns, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import Cosmos3OmniTransformer
from diffusers.models.transformers.transformer_cosmos3 import Cosmos3PackedMoTAttention, _rotate_half
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Rotary = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts: ids [B, L] padded on the right, lengths [B], frame rates [B] of their clips."""

    ids: Tensor
    lengths: Tensor
    fps: Tensor

    @classmethod
    def pad(cls, ids: list[list[int]], fps: list[float]) -> Prompts:
        lengths = torch.tensor([len(row) for row in ids])
        padded = torch.zeros(len(ids), int(lengths.max()), dtype=torch.long)
        for row, values in zip(padded, ids, strict=True):
            row[: len(values)] = torch.tensor(values)
        return cls(padded, lengths, torch.tensor(fps))


class BatchAttention:
    """Attention within each of `size` samples; `visible` [B, 1, 1, L + N] is false for padding."""

    def __init__(self, size: int, visible: Tensor) -> None:
        self.size, self.visible = size, visible

    def __call__(
        self, attn: Cosmos3PackedMoTAttention, und_seq: Tensor, gen_seq: Tensor, rotary_emb: Rotary
    ) -> tuple[Tensor, Tensor]:
        cos_und, sin_und, cos_gen, sin_gen = rotary_emb
        q_und = self._heads(attn, attn.norm_q, attn.to_q(und_seq), cos_und, sin_und)
        k_und = self._heads(attn, attn.norm_k, attn.to_k(und_seq), cos_und, sin_und)
        v_und = self._split(attn, attn.to_v(und_seq))
        q_gen = self._heads(attn, attn.norm_added_q, attn.add_q_proj(gen_seq), cos_gen, sin_gen)
        k_gen = self._heads(attn, attn.norm_added_k, attn.add_k_proj(gen_seq), cos_gen, sin_gen)
        v_gen = self._split(attn, attn.add_v_proj(gen_seq))
        und = scaled_dot_product_attention(q_und, k_und, v_und, is_causal=True, enable_gqa=True)
        keys, values = torch.cat([k_und, k_gen], dim=2), torch.cat([v_und, v_gen], dim=2)
        gen = scaled_dot_product_attention(q_gen, keys, values, attn_mask=self.visible, enable_gqa=True)
        return attn.to_out(_merge(und)), attn.to_add_out(_merge(gen))

    def _split(self, attn: Cosmos3PackedMoTAttention, x: Tensor) -> Tensor:
        """[B * length, heads * D] to [B, heads, length, D]."""
        return x.view(self.size, -1, x.shape[-1] // attn.head_dim, attn.head_dim).transpose(1, 2)

    def _heads(
        self, attn: Cosmos3PackedMoTAttention, norm: torch.nn.Module, x: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        heads = norm(self._split(attn, x))
        cos, sin = (part.view(self.size, 1, -1, attn.head_dim) for part in (cos, sin))
        rotated: Tensor = heads * cos + _rotate_half(heads) * sin
        return rotated


def _merge(x: Tensor) -> Tensor:
    """[B, heads, length, D] to [B * length, heads * D]."""
    return x.transpose(1, 2).flatten(-2).flatten(0, 1)


def predict_velocity(
    model: Cosmos3OmniTransformer, latents: Tensor, sigma: Tensor, noisy: Tensor, prompts: Prompts
) -> Tensor:
    """The model's velocity for latents [B, C, T, H, W] at noise levels sigma [B].

    `noisy` [B, T] is false for clean, conditioned frames: they get no timestep and no meaningful velocity.
    """
    size, _, frames, height, width = latents.shape
    patch = model.config.latent_patch_size
    grid = (frames, height // patch, width // patch)
    tokens = model.proj_in(_to_patches(latents, patch))
    time = model.time_embedder(model.time_proj(1000 * sigma * model.config.timestep_scale))
    tokens = tokens + time[:, None] * noisy.repeat_interleave(grid[1] * grid[2], dim=1)[..., None]
    text = model.embed_tokens(prompts.ids)

    positions_und, positions_gen = _positions(model, prompts, grid)
    cos_und, sin_und = _rotary(model, positions_und)
    cos_gen, sin_gen = _rotary(model, positions_gen)
    is_word = torch.arange(text.shape[1]) < prompts.lengths[:, None]
    visible = torch.cat([is_word, torch.ones(tokens.shape[:2], dtype=torch.bool)], dim=1)[:, None, None]
    model.set_attn_processor(BatchAttention(size, visible))
    rotary = (cos_und, sin_und, cos_gen, sin_gen)
    _, out = model._run_decoder_stack(text.flatten(0, 1), tokens.flatten(0, 1), rotary)
    return _from_patches(model.proj_out(out).view(size, *grid, -1), patch)


def _positions(
    model: Cosmos3OmniTransformer, prompts: Prompts, grid: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Rotary positions [3, B * length] of text and vision, as the pipeline's segments have them."""
    size, length = prompts.ids.shape
    und = torch.arange(length).float().expand(3, size, length)
    start = (prompts.lengths + model.config.unified_3d_mrope_temporal_modality_margin).float()
    pace = model.config.base_fps / prompts.fps if grid[0] > 1 else torch.ones(size)
    t, h, w = torch.meshgrid(*(torch.arange(n).float() for n in grid), indexing="ij")
    time = start[:, None] + pace[:, None] * t.flatten()
    gen = torch.stack([time, h.flatten().expand_as(time), w.flatten().expand_as(time)])
    return und.flatten(1), gen.flatten(1)


def _rotary(model: Cosmos3OmniTransformer, positions: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = model.rotary_emb(positions[:, None], device=positions.device, dtype=torch.float32)
    return cos.squeeze(0), sin.squeeze(0)


def _to_patches(latents: Tensor, patch: int) -> Tensor:
    """[B, C, T, H, W] to [B, N, patch * patch * C], channels fastest."""
    size, channels, frames, height, width = latents.shape
    cut = latents.reshape(size, channels, frames, height // patch, patch, width // patch, patch)
    return torch.einsum("bcthpwq->bthwpqc", cut).reshape(size, -1, patch * patch * channels)


def _from_patches(patches: Tensor, patch: int) -> Tensor:
    """[B, T, rows, columns, patch * patch * C] to [B, C, T, H, W]."""
    size, frames, rows, columns, _ = patches.shape
    cut = patches.reshape(size, frames, rows, columns, patch, patch, -1)
    return torch.einsum("bthwpqc->bcthpwq", cut).reshape(size, -1, frames, rows * patch, columns * patch)
