"""A short digest of a tensor, by which ranks find out that they hold different bits."""

from __future__ import annotations

import torch


def fingerprint(tensor: torch.Tensor) -> str:
    """Shape, dtype and a sum over the bits, weighted by position in a short cycle."""
    if tensor.is_meta or tensor.numel() == 0:
        return f"{tensor.dtype}{list(tensor.shape)}"
    as_bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = as_bytes[: as_bytes.numel() // 8 * 8].view(torch.int64)
    cycle = torch.arange(1, 1022, 2, device=words.device)
    whole = words[: words.numel() // cycle.numel() * cycle.numel()].view(-1, cycle.numel())
    total = (whole.sum(0) * cycle).sum() + words[whole.numel() :].sum() * 7 + as_bytes[-8:].sum()
    return f"{tensor.dtype}{list(tensor.shape)}#{int(total) & (2**64 - 1):016x}"
