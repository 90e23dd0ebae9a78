"""The two pathways of a model whose weights may live elsewhere: layer by layer, and a prompt's rows."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from armillary.models.cosmos3.pathways import EMBEDDING, Pathway, blocks_of
from armillary.parallel.residency import (
    Blocks,
    BlockStream,
    MovedWeights,
    ResidentBlocks,
    RowSource,
)
from armillary.parallel.tensor import place

KEPT_PROMPTS = 16
"""Embedded prompts that are kept; a prompt is some hundred rows."""


@dataclass(frozen=True)
class Pathways:
    """The layers of the understanding and of the generation pathway, wherever they live."""

    understanding: Blocks
    generation: Blocks
    rows: PromptRows | None = None
    """Where the embedding lives elsewhere."""

    def close(self) -> None:
        """Let go of buffers and threads; the weights stay where they are."""
        self.understanding.close()
        self.generation.close()
        if self.rows:
            self.rows.remove()


def pathways_of(model: Any, weights: MovedWeights | None) -> Pathways:
    """Both pathways of a model; those of their layers that live elsewhere come when they are needed."""
    if weights is None:
        return Pathways(ResidentBlocks(), ResidentBlocks())
    rows = None
    if EMBEDDING in weights.away:
        table = weights.away[EMBEDDING]
        place(model, EMBEDDING, table.absent(weights.device))
        rows = PromptRows(model.embed_tokens, weights.rows, table.dtype)
        rows.install()
    return Pathways(_stream(model, weights, "understanding"), _stream(model, weights, "generation"), rows)


def _stream(model: nn.Module, weights: MovedWeights, pathway: Pathway) -> Blocks:
    blocks = {
        number: [weights.away[name] for name in names]
        for number, names in blocks_of(weights.away, pathway).items()
    }
    if not blocks:
        return ResidentBlocks()
    return BlockStream(model, blocks, weights.source, prefetch=weights.prefetch, device=weights.device)


class PromptRows:
    """Takes the place of an embedding whose table is not on the device: a prompt's own rows are read."""

    def __init__(self, embedding: nn.Embedding, rows: RowSource, dtype: torch.dtype) -> None:
        self._embedding = embedding
        self._read_rows = partial(rows.read_rows, EMBEDDING)
        self._dtype = dtype
        self._width = embedding.embedding_dim
        # of the whole table, also where tp has split it
        self._rows = getattr(embedding, "full_num_embeddings", embedding.num_embeddings)
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._before: Any = None

    def install(self) -> None:
        """Put this in place on the embedding."""
        # of a table that tp has split
        self._before = vars(self._embedding).get("forward")
        vars(self._embedding)["forward"] = self.forward

    def remove(self) -> None:
        """Take it out again."""
        del vars(self._embedding)["forward"]
        if self._before is not None:
            vars(self._embedding)["forward"] = self._before

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [n] -> [n, hidden], as the whole table gives it."""
        key = ids.detach().cpu().numpy().tobytes()
        if key not in self._kept:
            self._kept[key] = self._look_up(ids)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_PROMPTS:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        needed, places = torch.unique(ids, return_inverse=True)
        if needed.numel() and not 0 <= needed[0] <= needed[-1] < self._rows:
            # as the table itself says it; the files would give the bytes of another tensor
            raise IndexError(
                f"token ids {needed[0]} to {needed[-1]} are outside the {self._rows} of the table"
            )
        rows = torch.empty(len(needed), self._width, dtype=self._dtype, device=ids.device)
        self._read_rows([(row, row + 1) for row in needed.tolist()], rows)
        return rows[places]
