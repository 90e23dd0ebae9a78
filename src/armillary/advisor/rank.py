"""One rank of a layout in the numbers that memory and time are made of, all from the resolved plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Literal, TypeAlias

from armillary.advisor.model import Model
from armillary.advisor.workload import Workload
from armillary.layout import Layout
from armillary.models.cosmos3.cost import LayerShape, generation_rows, latent_size
from armillary.models.cosmos3.pathways import Pathway
from armillary.models.registry import resolve
from armillary.plan.resolve import ResolvedPlan
from armillary.residency import Residency

BUFFER_ALIGNMENT = 256
"""Bytes; as the streaming buffers are laid out."""

Place: TypeAlias = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Weights:
    """Bytes of the transformer's weights on one rank."""

    device: int
    """That stay on the device."""
    host: int
    """One copy of this rank's own part of what lives in host memory."""
    left_out: int
    """Of modules that no generation calls: a `load` for a generation leaves them out."""
    split: int
    """Of all of them, the part that tp splits."""


@dataclass(frozen=True)
class RankModel:
    """What the first rank of a layout holds and computes; no rank has more."""

    model: Model
    resolved: ResolvedPlan
    _bytes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _sums: dict[Hashable, int] = field(default_factory=dict, repr=False, compare=False)
    _weights: dict[tuple[Residency, bool], Weights] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, model: Model, layout: Layout) -> RankModel:
        """Resolve `model` for `layout`; raises `LayoutError` where it cannot be split so."""
        return cls(model, resolve(model.skeleton, layout))

    def nbytes(self, name: str) -> int:
        """Bytes of this rank's part of a parameter."""
        if name not in self._bytes:
            parameter = self.resolved.skeleton.parameters[name]
            self._bytes[name] = prod(self.resolved.local_shape(name, 0)) * parameter.itemsize
        return self._bytes[name]

    def weights(self, residency: Residency, *, leave_out: bool) -> Weights:
        """Where this rank's bytes are; `leave_out` as a load for a generation does it."""
        key = (residency, leave_out)
        if key not in self._weights:
            self._weights[key] = self._add_up(residency, leave_out)
        return self._weights[key]

    def _add_up(self, residency: Residency, leave_out: bool) -> Weights:
        away = self.model.moved(residency)
        unused = self.model.family.UNUSED_BY_GENERATION if leave_out else ()
        bytes_at: dict[Place, int] = {"device": 0, "host": 0, "disk": 0}
        left_out = 0
        for name in self.resolved.skeleton.parameters:
            if name.partition(".")[0] in unused:
                left_out += self.nbytes(name)
            else:
                bytes_at[away.get(name, "device")] += self.nbytes(name)
        split = sum(self.nbytes(name) for name in self.resolved.shards)
        return Weights(bytes_at["device"], bytes_at["host"], left_out, split)

    def buffer_bytes(self, pathway: Pathway, residency: Residency) -> int:
        """The buffers through which the blocks of a pathway stream; 0 where all of them stay."""
        return self._once(("buffers", pathway, residency), lambda: self._buffers(pathway, residency))

    def streamed_bytes(self, pathway: Pathway, residency: Residency) -> int:
        """What is copied to the device for one pass through a pathway."""
        return self._once(("streamed", pathway, residency), lambda: self._streamed(pathway, residency))

    def _once(self, key: Hashable, count: Callable[[], int]) -> int:
        """A sum over thousands of parameters, made once: a search asks for it again and again."""
        if key not in self._sums:
            self._sums[key] = count()
        return self._sums[key]

    def _buffers(self, pathway: Pathway, residency: Residency) -> int:
        away = self.model.moved(residency)
        blocks = [
            block for block in self.model.blocks[pathway].values() if any(name in away for name in block)
        ]
        if not blocks:
            return 0
        rooms = [sum(_room(self.nbytes(name)) for name in block if name in away) for block in blocks]
        return min(residency.prefetch + 1, len(blocks)) * max(rooms)

    def _streamed(self, pathway: Pathway, residency: Residency) -> int:
        away = self.model.moved(residency)
        return sum(self.nbytes(name) for name in self._names(pathway) if name in away)

    def _names(self, pathway: Pathway) -> Iterable[str]:
        return (name for block in self.model.blocks[pathway].values() for name in block)

    @cached_property
    def linear(self) -> Mapping[Pathway, int]:
        """Elements of this rank's linear weights in all layers of a pathway."""
        parameters = self.resolved.skeleton.parameters
        return {
            pathway: sum(
                prod(self.resolved.local_shape(name, 0))
                for name in self._names(pathway)
                if parameters[name].kind == "linear" and name.endswith(".weight")
            )
            for pathway in self.model.blocks
        }

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.model.blocks["generation"])

    @cached_property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and their size on this rank."""
        local = next(iter(self.resolved.heads.values()))
        return local.local_query, local.local_key_value, local.head_dim

    def latents(self, workload: Workload) -> tuple[int, int, int]:
        """Frames, height and width of the latents."""
        able = self.model.abilities
        return latent_size(
            workload.width,
            workload.height,
            workload.frames,
            spatial=able.spatial_grid,
            temporal=able.temporal,
        )

    def all_rows(self, workload: Workload) -> int:
        """Rows of the whole generation sequence."""
        return generation_rows(self.model.config, self.latents(workload), workload.sound_seconds)

    def shape(self, workload: Workload, *, context: int) -> LayerShape:
        """A generation layer of this rank, where `context` ranks share the rows."""
        config = self.resolved.skeleton.config
        query, key_value, head_dim = self.heads
        all_rows = self.all_rows(workload)
        return LayerShape(
            rows=ceil(all_rows / context),
            all_rows=all_rows,
            prompt=workload.prompt_tokens,
            hidden=config["hidden_size"],
            query=query * head_dim,
            key_value=key_value * head_dim,
            mlp=self._mlp_width,
            head_dim=head_dim,
            gated=config["hidden_act"] == "silu",
            itemsize=self.model.itemsize,
        )

    @property
    def _mlp_width(self) -> int:
        return self.resolved.local_shape("layers.0.mlp_moe_gen.up_proj.weight", 0)[0]


def _room(nbytes: int) -> int:
    return -(-nbytes // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
