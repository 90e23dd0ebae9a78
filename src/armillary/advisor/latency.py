"""Seconds of a generation: a roofline of operations, bytes and links, with the engine's few fitted factors.

Rates come from data sheets (`hardware.py`), amounts from the resolved plan, shares from `engines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from armillary.advisor.engines import Engine
from armillary.advisor.hardware import Gpu
from armillary.advisor.memory import divides
from armillary.advisor.rank import RankModel, Work
from armillary.advisor.workload import Workload
from armillary.layout import Layout
from armillary.models.cosmos3.cost import LayerShape
from armillary.residency import Residency

HOST_LINK_SHARE = 0.85
"""Of a PCIe link's rate that copies from pinned memory reach (55 of 64 GB/s, as bandwidth tests show)."""

PICTURE_SHARE = 0.1
"""Of the seconds around a request, for one picture instead of a video: there is hardly a file to write."""

DISK_GB_PER_SECOND = 2.0
"""Assumed where weights are read again from disk."""


@dataclass(frozen=True)
class Latency:
    """Seconds of one request and what they are spent on; `parts` add up to `seconds`."""

    seconds: float
    seconds_per_step: float
    """Of a guided step, where there are guided steps."""
    parts: dict[str, float]


@dataclass(frozen=True)
class Machine:
    """The devices: one kind of card, so many on each machine."""

    gpu: Gpu
    per_node: int
    """Ranks on one machine; an axis that reaches further goes over the slower link."""


@dataclass(frozen=True)
class _Layer:
    """Seconds of one generation layer, one branch, on one rank."""

    linear: float
    attention: float
    collectives: float
    prompt: float = 0.0
    """The understanding half, where it is computed again at every step."""

    @property
    def total(self) -> float:
        return self.linear + self.attention + self.collectives + self.prompt


def latency_of(
    rank: RankModel,
    layout: Layout,
    residency: Residency,
    workload: Workload,
    engine: Engine,
    machine: Machine,
    *,
    gathered_weights: int = 1,
) -> Latency:
    """What a request takes; see `memory_of` for `gathered_weights`."""
    shape = rank.shape(workload, context=layout.ring * layout.gather * layout.ulysses)
    layer = _layer(rank, shape, rank.work(workload, shape), layout, engine, machine)
    branches = 2 if engine.packs_branches and workload.guided else 1
    passes = workload.steps if layout.cfg == 2 or branches == 2 else workload.forwards
    copied = _copy_seconds(rank, residency, machine) + _gather_seconds(rank, gathered_weights, machine)
    one = _layer_seconds(layer, branches, copied, engine)
    count = passes * rank.layers
    useful = branches * layer.total
    parts = {
        "linear": branches * layer.linear * count,
        "attention": branches * layer.attention * count,
        "collectives": branches * layer.collectives * count + _per_step(rank, shape, layout, passes, machine),
        "prompt": branches * layer.prompt * count
        + _prefill(rank, residency, layout, workload, engine, machine),
        "weights on the way": max(one - max(useful, engine.factors.launch), 0.0) * count,
        "launch": max(engine.factors.launch - useful, 0.0) * count,
        "decode": _decode(rank, layout, workload, engine, machine.gpu),
        "request": engine.factors.request * (1.0 if workload.frames > 1 else PICTURE_SHARE),
    }
    per_pass = one * rank.layers
    guided_passes = 2 if workload.guided and layout.cfg == 1 and branches == 1 else 1
    return Latency(sum(parts.values()), guided_passes * per_pass, parts)


def sustained(gpu: Gpu, share: float, power: float) -> float:
    """Operations a second: the peak, as far as the board's power and the kernels' `share` of it let them."""
    return float(gpu.tflops * 1e12 * min(1.0, share * gpu.watts_per_tflop**power))


def _layer(
    rank: RankModel, s: LayerShape, work: Work, layout: Layout, engine: Engine, machine: Machine
) -> _Layer:
    factors, gpu = engine.factors, machine.gpu
    matrix = sustained(gpu, factors.matrix, factors.power)
    attention = work.attention / _attention_rate(gpu, engine)
    passed = _ring_bytes(s, layout) / (_link(layout, "ring", machine) * factors.link)
    merged = 3 * layout.ring * s.rows * s.query * s.itemsize if layout.ring > 1 else 0
    again = 0.0 if engine.reuses_prompt else _linear(rank, "understanding", s.prompt, matrix, gpu)
    return _Layer(
        linear=_roof(work.linear / matrix, work.weight_bytes, gpu),
        attention=attention,
        # ring passes its chunks on while it attends to the one it has, and joins the parts at the end
        collectives=_exchange(rank, s, work, layout, engine, machine)
        + max(passed - attention, 0.0)
        + merged / (gpu.bandwidth * 1e9),
        prompt=again,
    )


def _roof(seconds: float, nbytes: float, gpu: Gpu) -> float:
    """Computing, or reading the weights, whichever takes longer."""
    return max(seconds, nbytes / (gpu.bandwidth * 1e9))


def _linear(rank: RankModel, pathway: str, rows: int, rate: float, gpu: Gpu) -> float:
    """One layer's linear weights of a pathway, applied to `rows`."""
    elements = rank.linear["understanding" if pathway == "understanding" else "generation"] / rank.layers
    return _roof(2 * elements * rows / rate, elements * rank.model.itemsize, gpu)


def _attention_rate(gpu: Gpu, engine: Engine) -> float:
    factors = engine.factors
    if factors.portable is not None and gpu.architecture in engine.missing_kernels:
        return gpu.tflops * 1e12 * factors.portable
    return sustained(gpu, factors.attention, factors.power)


def _exchange(
    rank: RankModel, s: LayerShape, work: Work, layout: Layout, engine: Engine, machine: Machine
) -> float:
    """Seconds of a layer's all-reduces, exchanges and gathers; bytes as `docs/layouts.md` has them."""
    tp, ulysses, gather = layout.tp, layout.ulysses, layout.gather
    size = s.head_dim * s.itemsize
    query, key_value, _ = rank.heads
    share = engine.factors.link
    reduced = 2 * (tp - 1) / tp * work.reduced_bytes
    exchanged = (ulysses - 1) / ulysses * s.rows * (2 * query + 2 * max(key_value, ulysses)) * size
    gathered = (gather - 1) * s.rows * 2 * key_value * size
    return (
        reduced * engine.factors.reduce / (_link(layout, "tp", machine) * share)
        + (exchanged if ulysses > 1 else 0) / (_link(layout, "ulysses", machine) * share)
        + gathered / (_link(layout, "gather", machine) * share)
    )


def _ring_bytes(s: LayerShape, layout: Layout) -> float:
    return (layout.ring - 1) * s.rows * 2 * s.key_value * s.itemsize


def _link(layout: Layout, axis: str, machine: Machine) -> float:
    """Bytes a second between the ranks of an axis; inner axes are neighbours on one machine."""
    reach = 1
    for name in reversed(Layout.AXES):
        reach *= layout.degrees[name]
        if name == axis:
            break
    return (machine.gpu.link if reach <= machine.per_node else machine.gpu.node_link) * 1e9


def _per_step(rank: RankModel, s: LayerShape, layout: Layout, passes: int, machine: Machine) -> float:
    """Beside the layers, every step: the embedded prompt summed, all rows gathered, the velocities joined."""
    row = s.hidden * s.itemsize
    outer = layout.ring * layout.gather
    axis = "ring" if layout.ring > 1 else "gather"
    embedded = 2 * (layout.tp - 1) / layout.tp * s.prompt * row / _link(layout, "tp", machine)
    inner = (layout.ulysses - 1) * s.rows * row / _link(layout, "ulysses", machine)
    across = (outer - 1) * layout.ulysses * s.rows * row / _link(layout, axis, machine)
    patch = int(rank.model.config.get("patch_latent_dim") or 192)
    velocities = (layout.cfg - 1) * s.all_rows * patch * 4
    return passes * (embedded + inner + across + velocities / _link(layout, "cfg", machine))


def _copy_seconds(rank: RankModel, residency: Residency, machine: Machine) -> float:
    """Copying one layer of the generation pathway to the device, 0 where it stays there."""
    streamed = rank.streamed_bytes("generation", residency) / rank.layers
    rate = DISK_GB_PER_SECOND if residency.offload == "disk" else machine.gpu.host_link * HOST_LINK_SHARE
    return streamed / (rate * 1e9)


def _gather_seconds(rank: RankModel, ranks: int, machine: Machine) -> float:
    """Gathering one layer's weights, both pathways, from the ranks they lie on."""
    if ranks == 1:
        return 0.0
    elements = sum(rank.linear.values()) / rank.layers
    link = machine.gpu.link if ranks <= machine.per_node else machine.gpu.node_link
    return elements * rank.model.itemsize * (ranks - 1) / ranks / (link * 1e9)


def _layer_seconds(layer: _Layer, branches: int, copied: float, engine: Engine) -> float:
    """One layer, with what is copied meanwhile: hidden behind it as far as the engine hides it."""
    busy = max(branches * layer.total, engine.factors.launch)
    if not copied:
        return busy
    overlap = engine.factors.overlap
    if overlap <= 1:  # prefetched: the next layer comes while this one computes
        return max(busy, copied)
    return float((busy**overlap + copied**overlap) ** (1 / overlap))


def _prefill(
    rank: RankModel,
    residency: Residency,
    layout: Layout,
    workload: Workload,
    engine: Engine,
    machine: Machine,
) -> float:
    """The understanding pathway, once a prompt and branch, its weights fetched where they live elsewhere."""
    if not engine.reuses_prompt:
        return 0.0
    rate = sustained(machine.gpu, engine.factors.matrix, engine.factors.power)
    computed = _linear(rank, "understanding", workload.prompt_tokens, rate, machine.gpu) * rank.layers
    launched = engine.factors.launch * rank.layers
    place = residency.evict or residency.offload
    host = DISK_GB_PER_SECOND if place == "disk" else machine.gpu.host_link * HOST_LINK_SHARE
    fetched = rank.streamed_bytes("understanding", residency) / (host * 1e9)
    branches = 2 if workload.guided and layout.cfg == 1 else 1
    return branches * max(computed, launched, fetched)


def _decode(rank: RankModel, layout: Layout, workload: Workload, engine: Engine, gpu: Gpu) -> float:
    cost = rank.model.decode(rank.latents(workload))
    ranks = layout.world_size if engine.divides_decode and divides(layout, workload) else 1
    sides = rank.latents(workload)[1:]
    strips = min(ranks, max(sides))
    part = ceil(max(sides) / strips) / max(sides)
    return cost.operations * part / sustained(gpu, engine.factors.decode, engine.factors.power)
