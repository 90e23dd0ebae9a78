"""Which pathway a parameter of `Cosmos3OmniTransformer` belongs to, and which of them leave the device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from armillary.residency import Elsewhere, Residency

Pathway: TypeAlias = Literal["understanding", "generation"]

UNUSED_BY_GENERATION = ("lm_head",)
"""Modules that no generation calls."""

EMBEDDING = "embed_tokens.weight"
"""Of which a prompt needs its own rows only."""

_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.\w+")
_GENERATION = re.compile(r".*_moe_gen(\..*)?|self_attn\.(add_[qkv]_proj|to_add_out|norm_added_[qk])")


def blocks_of(names: Iterable[str], pathway: Pathway) -> Mapping[int, tuple[str, ...]]:
    """Layer number -> the parameters that its part of a pathway has."""
    blocks: dict[int, list[str]] = {}
    for name in names:
        found = _LAYER.fullmatch(name)
        if found and (_GENERATION.fullmatch(found[2]) is not None) == (pathway == "generation"):
            blocks.setdefault(int(found[1]), []).append(name)
    return {number: tuple(block) for number, block in blocks.items()}


def moved(names: Iterable[str], residency: Residency) -> Mapping[str, Elsewhere]:
    """The parameters that do not live on the device, and where they live; "auto" must be settled."""
    names = tuple(names)
    assert residency.offload != "auto", "`Residency.on` says where"
    assert residency.evict != "auto", "`Residency.on` says where"
    away: dict[str, Elsewhere] = {}
    understanding, generation = blocks_of(names, "understanding"), blocks_of(names, "generation")
    if residency.offload:
        for blocks in (understanding, generation):
            for number, block in blocks.items():
                if number >= residency.resident_layers:
                    away |= dict.fromkeys(block, residency.offload)
    if residency.evict:
        for block in understanding.values():
            away |= dict.fromkeys(block, residency.evict)
        away[EMBEDDING] = residency.evict
    return away
