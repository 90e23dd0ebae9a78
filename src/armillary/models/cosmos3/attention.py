"""The two halves of Cosmos 3's attention: what the prompt leaves behind, and what generation does with it.

The stock processor computes both at every step. The operations here are the same ones in the same
order, so that at world 1 the result has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

Rope: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""(cosine, sine), each [n, head size]."""

Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class PromptKeys(NamedTuple):
    """What generation needs of a prompt in one layer: [prompt, key/value heads, size] each."""

    key: torch.Tensor
    value: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


def prompt_keys(attn: Any, und_seq: torch.Tensor, rope: Rope) -> tuple[PromptKeys, torch.Tensor]:
    """The keys and values of a normalised prompt, for generation and (second) the key for the prompt itself.

    They differ in checkpoints with an extra key norm for generation (`k_norm_und_for_gen`).
    """
    key = attn.norm_k(_heads(attn.to_k(und_seq), attn.num_key_value_heads, attn.head_dim))
    value = _heads(attn.to_v(und_seq), attn.num_key_value_heads, attn.head_dim)
    for_generation = key if attn.k_norm_und_for_gen is None else attn.k_norm_und_for_gen(key)
    own = _rotate(key, rope)
    rotated = own if for_generation is key else _rotate(for_generation, rope)
    return PromptKeys(rotated, value), own


def understand(attn: Any, und_seq: torch.Tensor, rope: Rope) -> tuple[PromptKeys, torch.Tensor]:
    """The understanding pathway of one layer: its keys and values, and its output [prompt, hidden]."""
    kept, key = prompt_keys(attn, und_seq, rope)
    query = _rotate(attn.norm_q(_heads(attn.to_q(und_seq), attn.num_attention_heads, attn.head_dim)), rope)
    out = stock_attention(attn, is_causal=True)(query, key, kept.value)
    return kept, attn.to_out(out.flatten(-2, -1))


def generation_projections(
    attn: Any, gen_seq: torch.Tensor, rope: Rope
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value of normalised generation rows, with their norms and rotary embedding."""
    query = attn.norm_added_q(_heads(attn.add_q_proj(gen_seq), attn.num_attention_heads, attn.head_dim))
    key = attn.norm_added_k(_heads(attn.add_k_proj(gen_seq), attn.num_key_value_heads, attn.head_dim))
    value = _heads(attn.add_v_proj(gen_seq), attn.num_key_value_heads, attn.head_dim)
    return _rotate(query, rope), _rotate(key, rope), value


def stock_attention(attn: Any, *, is_causal: bool = False) -> Attend:
    """The attention of one device through diffusers' dispatch, with the backend set on the processor."""
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = dispatch_attention_fn(
            query.unsqueeze(0),
            key.unsqueeze(0),
            value.unsqueeze(0),
            is_causal=is_causal,
            enable_gqa=True,
            backend=attn.processor._attention_backend,
        )
        return out.squeeze(0)

    return attend


def _heads(flat: torch.Tensor, heads: int, head_dim: int) -> torch.Tensor:
    return flat.view(-1, heads, head_dim)


def _rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary embedding of [n, heads, size], the two halves of a head turned against each other."""
    cosine, sine = (part.unsqueeze(1) for part in rope)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + turned * sine
