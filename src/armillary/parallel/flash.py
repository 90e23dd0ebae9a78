"""Attention that also returns its log-sum-exp, and the merge of parts that saw different keys.

Run so far: CPU (aten's flash kernel for the CPU, float32 and bfloat16). Written for CUDA (aten's flash
kernel in half precision, the memory-efficient one otherwise) and not yet run there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from armillary.errors import LayoutError, Problem

Part: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""(output [n, heads, size], log-sum-exp [n, heads] in float32) of the queries over some of the keys."""


def attend_with_lse(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> Part:
    """Full attention of [n, heads, size] over [m, key/value heads, size]; n and m are at least 1.

    All may have a batch between heads and size.
    """
    q, k, v = (_batch_first(x) for x in (query, key, value))
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
    else:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        if q.dtype in (torch.float16, torch.bfloat16):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]
        else:
            out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
                q, k, v, None, True, scale=scale
            )[:2]
    assert lse.shape[1] == q.shape[1], (
        "the log-sum-exp is [batch, heads, n], with n rounded up by some kernels"
    )
    out, lse = out.permute(2, 1, 0, 3), lse[:, :, : query.shape[0]].permute(2, 1, 0).float()
    return (out, lse) if query.dim() == 4 else (out.squeeze(2), lse.squeeze(2))


def _batch_first(x: torch.Tensor) -> torch.Tensor:
    """[n, heads, size] or [n, heads, batch, size] -> [batch, heads, n, size]."""
    return (x if x.dim() == 4 else x.unsqueeze(2)).permute(2, 1, 0, 3)


def refuse_backend(processor: Any, ring: int) -> None:
    """Raise `LayoutError` for an attention backend that `attend_with_lse` would pass over."""
    backend = getattr(processor, "_attention_backend", None)
    name = str(getattr(backend, "value", backend))
    if backend is not None and name != "native":
        raise LayoutError(
            Problem(
                "ring-backend",
                f"ring={ring} computes with torch's own kernels, {type(processor).__name__} asks for {name}",
                "use gather or ulysses, or the native backend",
            )
        )


def merge(parts: Sequence[Part], query: torch.Tensor) -> torch.Tensor:
    """The attention over all keys, from the parts over some of them; like `query` where there are none."""
    if not parts:
        return torch.zeros_like(query)
    if len(parts) == 1:
        return parts[0][0]
    total = torch.logsumexp(torch.stack([lse for _, lse in parts]), dim=0)
    out = sum(part.float() * (lse - total).exp().unsqueeze(-1) for part, lse in parts)
    assert isinstance(out, torch.Tensor), "there are parts"
    return out.to(query.dtype)
