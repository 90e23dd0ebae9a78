"""A short digest of a tensor, by which ranks find out that they hold different bits."""

from __future__ import annotations

import torch

_CYCLE = 511


def fingerprint(tensor: torch.Tensor) -> str:
    """Shape, dtype and a sum over the bits, weighted by position in a short cycle."""
    if tensor.is_meta or tensor.numel() == 0:
        return f"{tensor.dtype}{list(tensor.shape)}"
    as_bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if as_bytes.storage_offset() % 8:  # a slice that does not start at a word
        as_bytes = as_bytes.clone()
    whole = as_bytes.numel() // 8 * 8
    total = _weighted_sum(as_bytes[:whole].view(torch.int64)) + 7 * _weighted_sum(as_bytes[whole:].long())
    return f"{tensor.dtype}{list(tensor.shape)}#{total & (2**64 - 1):016x}"


def _weighted_sum(words: torch.Tensor) -> int:
    # odd weights, so that no bit of a word is lost; 511 of them, so that rows of 2**n words do not fall
    # on the same weight, and exchanged rows show
    cycle = torch.arange(1, 2 * _CYCLE, 2, device=words.device)
    rows = words.numel() // _CYCLE
    columns = words[: rows * _CYCLE].view(rows, _CYCLE).sum(0)
    rest = words[rows * _CYCLE :]
    return int((columns * cycle).sum() + (rest * cycle[: rest.numel()]).sum())
