"""Entries that many plans share: the layers that diffusers calls the same in every model."""

from __future__ import annotations

from collections.abc import Mapping

from armillary.plan.styles import Colwise, Entry, NormSplit, Optional, PackedColwise, parse_entry

MODULATION = Colwise(gather=True)
"""A layer that turns the timestep's embedding into shifts, scales and gates: one row a prompt, so that making
it whole again costs little, and up to a quarter of a model's weights."""


def attention_entries(path: str, *, added: bool = False, out: str | None = "to_out.0") -> dict[str, Entry]:
    """The projections of an attention module.

    Args:
        path: plan key of the module.
        added: it has projections of a second stream.
        out: its output projection, None where the block has one for attention and MLP together.
    """
    entries: dict[str, object] = {f"{path}.{name}": "colwise" for name in ("to_q", "to_k", "to_v")}
    if added:
        entries |= {f"{path}.{name}": "colwise" for name in ("add_q_proj", "add_k_proj", "add_v_proj")}
        entries[f"{path}.to_add_out"] = "rowwise"
        entries[f"{path}.to_added_qkv"] = Optional(PackedColwise([1, 1, 1]))
    # there after `fuse_qkv_projections()`
    entries[f"{path}.to_qkv"] = Optional(PackedColwise([1, 1, 1]))
    if out:
        entries[f"{path}.{out}"] = "rowwise"
    return _parsed(entries)


def norm_entries(path: str) -> dict[str, Entry]:
    """The norms of queries and keys of an attention module, where they go across all heads."""
    return {f"{path}.{name}": NormSplit() for name in ("norm_q", "norm_k")}


def feed_forward_entries(path: str, *, gated: bool = False) -> dict[str, Entry]:
    """diffusers' `FeedForward`; `gated` where its first layer is values and gate in one."""
    first = PackedColwise([1, 1]) if gated else "colwise"
    return _parsed({f"{path}.net.0.proj": first, f"{path}.net.2": "rowwise"})


def optional(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The same entries, for modules that some configs lack."""
    return {key: e if isinstance(e, Optional) else Optional(e) for key, e in entries.items()}


def _parsed(entries: Mapping[str, object]) -> dict[str, Entry]:
    return {key: parse_entry(entry) for key, entry in entries.items()}
