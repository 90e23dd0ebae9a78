"""Bytes on one rank, phase by phase: reading the prompt, denoising, decoding. No torch.

Weights, prompts and streaming buffers are exact; the activations of a step come from the model's own formula
(`models/cosmos3/cost.py`, held against the allocator); the rest are stated allowances.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from armillary.advisor.engines import Engine
from armillary.advisor.hardware import MIB
from armillary.advisor.rank import RankModel
from armillary.advisor.vae import Decode
from armillary.advisor.workload import Workload
from armillary.layout import Layout
from armillary.models.cosmos3.cost import LayerShape, step_bytes
from armillary.residency import Residency

DEVICE_CONTEXT_BYTES = 600 * MIB
"""Allowance: context, kernels and libraries of a process, which no allocator counts."""

COLLECTIVE_BYTES = 256 * MIB
"""Allowance a communicator: channels and scratch memory of NCCL."""

SLACK = 0.08
"""Allowance: part of the activations that a caching allocator loses to blocks of other sizes."""

DIVIDED_FROM = 256 * 256 * 9
"""Pixels x frames from which on Armillary decodes on all ranks (`parallel/vae.py`)."""

_LATENT_COPIES = 6
"""Noise, sample, two velocities, and the scheduler's two earlier outputs, in float32."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank. Each phase is a breakdown that adds up to what is needed during it."""

    phases: dict[str, dict[str, int]]
    host: int

    @property
    def peak(self) -> int:
        """The most that is needed at any time."""
        return max(sum(parts.values()) for parts in self.phases.values())

    @property
    def peak_phase(self) -> str:
        """When that is."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))


def memory_of(
    rank: RankModel,
    layout: Layout,
    residency: Residency,
    workload: Workload,
    engine: Engine,
    *,
    gathered_weights: int = 1,
) -> Memory:
    """What one rank needs.

    Args:
        gathered_weights: over how many ranks weights lie that are gathered layer by layer (fully sharded).
    """
    weights = rank.weights(residency, leave_out=engine.leaves_out_unused)
    decode = rank.model.decode(rank.latents(workload))
    always = {
        "context": DEVICE_CONTEXT_BYTES + _communicators(layout) * COLLECTIVE_BYTES,
        "weights": _held(rank, weights.device, gathered_weights),
        "other components": rank.other_bytes,
        "streaming buffers": rank.buffer_bytes("generation", residency),
        "latents": _latent_bytes(rank, workload),
    }
    prompts = _prompt_bytes(rank, layout, workload) if engine.reuses_prompt else 0
    shape = _packed(rank.shape(workload, context=_context(layout)), workload, engine)
    prompt_layer = step_bytes(replace(shape, rows=shape.prompt))
    visitors = rank.buffer_bytes("understanding", residency)
    step = step_bytes(shape)
    phases = {
        "prompt": {"prompt K/V": prompts, "activations": prompt_layer, "visiting blocks": visitors},
        "denoise": {
            "prompt K/V": prompts,
            "activations": step,
            "collectives": exchange_bytes(shape, layout),
        },
        "decode": {"prompt K/V": prompts, "vae decode": _decode_bytes(decode, layout, workload, engine)},
    }
    filled = {name: {**always, **parts} for name, parts in phases.items()}
    for parts in filled.values():
        moving = sum(parts.get(key, 0) for key in ("activations", "collectives", "vae decode"))
        parts["allocator slack"] = round(SLACK * moving)
    return Memory(filled, weights.host)


def _context(layout: Layout) -> int:
    return layout.ring * layout.gather * layout.ulysses


def _communicators(layout: Layout) -> int:
    """One for each axis in use, and one for all ranks."""
    used = sum(degree > 1 for degree in layout.degrees.values())
    return used + (used > 0)


def _held(rank: RankModel, device: int, gathered: int) -> int:
    """Fully sharded weights: this rank's share, and two whole layers (the one in use and the next)."""
    if gathered == 1:
        return device
    layer = sum(rank.nbytes(name) for blocks in rank.model.blocks.values() for name in blocks[0])
    return device // gathered + 2 * layer


def _prompt_bytes(rank: RankModel, layout: Layout, workload: Workload) -> int:
    """Keys and values of every layer, for the branches that this rank computes."""
    _, heads, size = rank.heads  # 0 where no prompt is kept
    branches = 2 if workload.guided and layout.cfg == 1 else 1
    return branches * rank.layers * 2 * workload.prompt_tokens * heads * size * rank.model.itemsize


def _latent_bytes(rank: RankModel, workload: Workload) -> int:
    frames, height, width = rank.latents(workload)
    channels = int(rank.model.config.get("latent_channel") or rank.model.config.get("in_channels") or 48)
    return _LATENT_COPIES * frames * height * width * channels * 4


def _packed(shape: LayerShape, workload: Workload, engine: Engine) -> LayerShape:
    """Both branches in one sequence hold twice the rows."""
    if not (engine.packs_branches and workload.guided):
        return shape
    return replace(shape, rows=2 * shape.rows, all_rows=2 * shape.all_rows, prompt=2 * shape.prompt)


def exchange_bytes(s: LayerShape, layout: Layout) -> int:
    """What a layer's collectives hold beside its own tensors: sent and received copies, parts of ring."""
    ulysses = 2 * s.rows * (s.query + 2 * s.key_value) if layout.ulysses > 1 else 0
    gather = 3 * s.all_rows * 2 * s.key_value if layout.gather > 1 else 0
    passed = 2 * s.rows * 2 * s.key_value + layout.ring * s.rows * s.query if layout.ring > 1 else 0
    return (ulysses + gather + passed) * s.itemsize


def _decode_bytes(decode: Decode, layout: Layout, workload: Workload, engine: Engine) -> int:
    """Strips hold their part of the decoder's tensors; the whole clip is put together on every rank."""
    strips = layout.world_size if engine.divides_decode and divides(layout, workload) else 1
    return decode.working_bytes // strips + 2 * decode.clip_bytes


def divides(layout: Layout, workload: Workload) -> bool:
    """Whether Armillary decodes on all ranks: see `armillary.parallel.vae`."""
    return layout.world_size > 1 and workload.width * workload.height * workload.frames >= DIVIDED_FROM
