"""One answer: a layout with a residency, what it needs on a rank and how long a request takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from armillary.advisor.engines import Engine
from armillary.advisor.hardware import Gpu
from armillary.advisor.latency import Latency, Machine, latency_of
from armillary.advisor.memory import Memory, memory_of
from armillary.advisor.model import Model
from armillary.advisor.rank import RankModel
from armillary.advisor.workload import Workload
from armillary.errors import LayoutError, Problem
from armillary.layout import Layout
from armillary.residency import Residency

RESIDENCIES = {
    "device": Residency(),
    "evict": Residency(evict="host"),
    "offload": Residency(offload="host"),
    "offload+evict": Residency(offload="host", evict="host"),
}
"""Where weights may live, by the name that a report uses."""


DEVICES_PER_NODE = 8
"""Of the machines of all vendors, where nothing else is said."""

SHARDS_ABOVE = 0.75
"""Of a card's memory: NVIDIA's reference shards Super on H200 (0.85) and not on B200 (0.67)."""


@dataclass(frozen=True)
class Option:
    """A layout with a residency, judged."""

    layout: Layout
    residency: Residency
    memory: Memory
    latency: Latency
    weight_bytes: int
    """Of the transformer on a rank's device, as `armillary.load` puts them there."""
    fits: bool
    sharded: int = 1
    """Over how many ranks the weights lie that are gathered layer by layer."""

    @property
    def residency_name(self) -> str:
        """As in `RESIDENCIES`; "sharded" where each layer is gathered from all ranks."""
        if self.sharded > 1:
            return "sharded"
        return residency_name(self.residency)


def shards_weights(rank: RankModel, gpu: Gpu, engine: Engine) -> bool:
    """Whether an engine with a way of its own keeps a share of the weights on each card and gathers them
    layer by layer: where all of them would take most of a card."""
    held = rank.weights(Residency(), leave_out=False).device
    return engine.own_split and held > SHARDS_ABOVE * gpu.memory_bytes


def residency_name(residency: Residency) -> str:
    """ "device", "evict", "offload" or "offload+evict"."""
    used = [name for name in ("offload", "evict") if getattr(residency, name)]
    return "+".join(used) or "device"


@dataclass(frozen=True)
class Question:
    """What is asked: a model, a generation, an engine and a kind of card."""

    model: Model
    workload: Workload
    engine: Engine
    gpu: Gpu
    per_node: int = DEVICES_PER_NODE
    """Devices of one machine."""
    _ranks: dict[tuple[int, int], RankModel | tuple[Problem, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def nodes(self, layout: Layout) -> int:
        """Machines that a layout needs."""
        return -(-layout.world_size // self.per_node)

    def rank(self, layout: Layout) -> RankModel:
        """The first rank of a layout; raises `LayoutError` where the model cannot be split so."""
        key = (layout.ulysses, layout.tp)
        if key not in self._ranks:
            try:
                self._ranks[key] = RankModel.of(self.model, Layout(ulysses=layout.ulysses, tp=layout.tp))
            except LayoutError as error:
                self._ranks[key] = error.problems
        found = self._ranks[key]
        if isinstance(found, RankModel):
            # Ulysses changes nothing that a rank holds: one and the same for all, so that sums are made once
            return found if layout.ulysses == 1 else self.rank(Layout(tp=layout.tp))
        raise LayoutError(found)

    def evaluate(self, layout: Layout, residency: Residency) -> Option:
        """Judge one layout; raises `LayoutError` where the model cannot be split so."""
        if self.engine.own_split:
            return self._own_split(layout, residency)
        return self._option(self.rank(layout), layout, residency)

    def _own_split(self, layout: Layout, residency: Residency) -> Option:
        """Rows over all ranks; where the weights do not fit one card, each layer gathered from all."""
        own = Layout(gather=layout.world_size)
        rank = self.rank(own)
        sharded = own.world_size if shards_weights(rank, self.gpu, self.engine) else 1
        return self._option(rank, own, residency, named=layout, sharded=sharded)

    def _option(
        self,
        rank: RankModel,
        layout: Layout,
        residency: Residency,
        *,
        named: Layout | None = None,
        sharded: int = 1,
    ) -> Option:
        memory = memory_of(rank, layout, residency, self.workload, self.engine, gathered_weights=sharded)
        machine = Machine(self.gpu, self.per_node)
        latency = latency_of(
            rank, layout, residency, self.workload, self.engine, machine, gathered_weights=sharded
        )
        held = rank.weights(residency, leave_out=False).device
        return Option(
            layout=named or layout,
            residency=residency,
            memory=memory,
            latency=latency,
            weight_bytes=held // sharded,
            fits=memory.peak <= self.gpu.memory_bytes,
            sharded=sharded,
        )
