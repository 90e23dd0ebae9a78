"""One rank of a layout in the numbers that memory and time are made of, all from the resolved plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Literal, TypeAlias

from armillary.advisor.model import Model
from armillary.advisor.vae import weight_count
from armillary.advisor.workload import Workload
from armillary.layout import Layout
from armillary.models.cosmos3.cost import LayerShape, generation_rows, latent_size
from armillary.models.cosmos3.pathways import Pathway
from armillary.models.cost import Cost, Size
from armillary.models.registry import resolve
from armillary.plan.explain import key_of
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.styles import PackedRowwise, Rowwise
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
class Work:
    """What one layer of one forward is, on one rank; operations count multiplications and additions."""

    linear: float
    weight_bytes: float
    attention: float
    reduced_bytes: float
    """Of the tensors that tp all-reduces."""


@dataclass(frozen=True)
class RankModel:
    """What the first rank of a layout holds and computes; no rank has more."""

    model: Model
    resolved: ResolvedPlan
    _bytes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _sums: dict[Hashable, int] = field(default_factory=dict, repr=False, compare=False)
    _weights: dict[tuple[Residency, bool], Weights] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(model: Model, layout: Layout) -> RankModel:
        """Resolve `model` for `layout`; raises `LayoutError` where it cannot be split so."""
        kind = OtherRank if model.facts else RankModel
        return kind(model, resolve(model.skeleton, layout))

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
        known = getattr(self.model.family, "UNUSED_BY_GENERATION", ())
        unused = known if leave_out else ()
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
        spatial, temporal = self.model.vae_factors
        return latent_size(
            workload.width, workload.height, workload.frames, spatial=spatial, temporal=temporal
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

    def work(self, workload: Workload, shape: LayerShape) -> Work:
        """What one of its generation layers computes."""
        elements = self.linear["generation"] / self.layers
        return Work(
            linear=2 * elements * shape.rows,
            weight_bytes=elements * shape.itemsize,
            attention=4 * shape.rows * (shape.all_rows + shape.prompt) * shape.query,
            reduced_bytes=2 * shape.rows * shape.hidden * shape.itemsize,
        )

    @property
    def other_bytes(self) -> int:
        """Of the VAE, which is loaded beside the transformer."""
        return weight_count(self.model.vae) * self.model.itemsize

    @property
    def _mlp_width(self) -> int:
        return self.resolved.local_shape("layers.0.mlp_moe_gen.up_proj.weight", 0)[0]


@dataclass(frozen=True)
class OtherRank(RankModel):
    """The first rank of a model of another family, from what the family says of its rows."""

    @cached_property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and their size; no prompt is kept, so nothing else reads them."""
        local = max(self.resolved.heads.values(), key=lambda found: found.local_query * found.head_dim)
        return local.local_query, 0, local.head_dim

    def all_rows(self, workload: Workload) -> int:
        """The most rows that attend at once."""
        return max(attention.queries for attention in self._cost(workload).attentions)

    def shape(self, workload: Workload, *, context: int) -> LayerShape:
        """A layer as wide as the widest: what its tensors hold is estimated as for Cosmos 3's."""
        query, _, head_dim = self.heads
        full = max(found.full_query * found.head_dim for found in self.resolved.heads.values())
        rows = self.all_rows(workload)
        return LayerShape(
            rows=rows,
            all_rows=rows,
            prompt=0,
            hidden=full,
            query=query * head_dim,
            key_value=query * head_dim,
            mlp=self._mlp_width,
            head_dim=head_dim,
            gated=False,
            itemsize=self.model.itemsize,
        )

    def work(self, workload: Workload, shape: LayerShape) -> Work:
        """All of a forward, in as many parts as there are blocks."""
        cost, skeleton = self._cost(workload), self.resolved.skeleton
        rows = {path: cost.rows_of(key_of(path, skeleton.tree)) for path in skeleton.modules}
        linear = {
            path: prod(self.resolved.local_shape(f"{path}.weight", 0))
            for path, owned in skeleton.modules.items()
            if "weight" in owned and owned["weight"].kind == "linear"
        }
        reduced = [
            rows[path] * skeleton.parameters[f"{path}.weight"].shape[0]
            for path, style in self.resolved.styles.items()
            if isinstance(style, Rowwise | PackedRowwise)
        ]
        attention = 0
        for path, local in self.resolved.heads.items():
            for one in cost.attentions:
                if key_of(path, skeleton.tree) == one.module:
                    attention += 4 * one.queries * one.keys * local.local_query * local.head_dim
        return Work(
            linear=sum(2 * rows[path] * elements for path, elements in linear.items()) / self.layers,
            weight_bytes=sum(linear.values()) * shape.itemsize / self.layers,
            attention=attention / self.layers,
            reduced_bytes=sum(reduced) * shape.itemsize / self.layers,
        )

    @property
    def other_bytes(self) -> int:
        """Of text encoders and VAE, which the pipeline keeps beside the transformer."""
        facts = self.model.facts
        assert facts is not None, "a model of another family has facts"
        vae = weight_count(self.model.vae) if self.model.vae else 0
        return (sum(facts.others.values()) + vae) * self.model.itemsize

    def _cost(self, workload: Workload) -> Cost:
        frames, height, width = self.latents(workload)
        size = Size(height=height, width=width, frames=frames, text=workload.prompt_tokens)
        return self.model.family.cost(self.resolved.skeleton.config, size)

    @property
    def _mlp_width(self) -> int:
        """Of the widest layer in a block, for rows of the sequence."""
        linear = (
            self.resolved.local_shape(name, 0)[0]
            for name in self._names("generation")
            if name.endswith(".weight") and ("ff" in name or "mlp" in name)
        )
        return max(linear, default=4 * self.heads[0] * self.heads[2])


def _room(nbytes: int) -> int:
    return -(-nbytes // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
