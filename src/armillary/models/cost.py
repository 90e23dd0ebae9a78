"""What a forward computes beside its weights: how many rows pass which layers, and who attends to whom.

The sizes of the weights are in the skeleton; with the rows that pass them, a layer's operations are
2 x rows x outputs x inputs, and those of an attention 4 x queries x keys x width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Size:
    """One item of one forward, in latents: what the VAE makes of a picture or a video."""

    height: int
    width: int
    frames: int = 1
    text: int
    """Rows of the prompt's embedding."""


@dataclass(frozen=True)
class Attention:
    """Every module under `module` (a plan key) attends from `queries` rows to `keys` rows."""

    module: str
    queries: int
    keys: int


def text_rows(block: str, rows: int, *layers: str) -> dict[str, int]:
    """The prompt's layers in blocks with two streams: its projections in attention, and `layers`."""
    attention = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    return {f"{block}.{layer}": rows for layer in (*(f"attn.{name}" for name in attention), *layers)}


@dataclass(frozen=True)
class Cost:
    """Of one item of a batch."""

    rows: Mapping[str, int]
    """Plan key of modules to the rows that pass the linear layers in them; the longest that fits counts."""
    attentions: tuple[Attention, ...]

    def rows_of(self, layer: str) -> int:
        """Rows that pass a layer whose path is written with `*` for block numbers."""
        keys = [key for key in self.rows if f"{layer}.".startswith(f"{key}.")]
        return self.rows[max(keys, key=len)] if keys else 1
