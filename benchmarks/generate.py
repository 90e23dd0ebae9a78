"""Whole generations with guidance, in one process of one thread: Armillary beside the stock transformer.

    python benchmarks/generate.py [--repeats 5] [--keep]

One stock modular pipeline runs both: once with diffusers' transformer, once with the same weights from
`armillary.load(..., prefill=True)`, turn by turn. What counts is the time inside the transformer, from the
first step to the last and both branches of guidance, so the one pass over each prompt is in it. Every turn
has prompts of its own: none is left over from the turn before.
Goal: armillary / stock <= 0.65 at 256 text + 256 vision tokens and <= 0.80 at 512 + 1024.
Exits with 1 when the final latents differ in a single bit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import Elapsed, provenance, publish, ratios, spread

import armillary
from armillary.models.cosmos3 import UNUSED_BY_GENERATION
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny

MODEL = {
    "hidden": 512,
    "layers": 4,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "intermediate": 1536,
    "vocab": 320,
    "sound": False,
    "action": False,
}
STEPS = 8
"""The published schedules have 35 and 50, over which a prompt's one pass weighs less."""
TEMPLATE_TOKENS = 21
"""That the chat template of a generated checkpoint adds to a prompt's bytes, each of which is a token."""


@dataclass(frozen=True)
class Shape:
    """One generation's size."""

    text: int
    """Tokens of each of the two prompts."""
    vision: int
    pixels: int
    """Width and height, of 13 frames: 4 latent frames of (pixels / 32)² tokens each."""
    goal: float

    @property
    def label(self) -> str:
        return f"{self.text}+{self.vision}"


SHAPES = (Shape(256, 256, 256, goal=0.65), Shape(512, 1024, 512, goal=0.80))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="generations of each route and shape")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/generate.json as well")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: a spread needs at least 2")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="armillary-generate-") as scratch:
        folder = write_tiny(Path(scratch) / "model", TinyOptions(**MODEL))  # type: ignore[arg-type]
        pipeline = _stock_pipeline(folder)
        ours = armillary.load(
            folder, subfolder="transformer", prefill=True, leave_out=UNUSED_BY_GENERATION, progress=False
        )
        transformers = {"armillary": ours, "stock": pipeline.transformer}
        shapes = {
            s.label: _figures(s, _take_turns(pipeline, transformers, s, options.repeats)) for s in SHAPES
        }
    setting = {"ranks": 1, "threads": 1, "steps": STEPS, "model": MODEL, "repeats": options.repeats}
    publish(
        "generate", {"benchmark": "generate", **provenance(), **setting, "shapes": shapes}, keep=options.keep
    )
    return int(not all(figures["same_bits"] for figures in shapes.values()))


def _stock_pipeline(folder: Path) -> Any:
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(str(folder))
    pipeline.load_components(dtype=torch.float32)
    pipeline.disable_safety_checker()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@dataclass
class Turns:
    """What the turns of one shape gave."""

    times: dict[str, list[Elapsed]]
    """Route -> time inside the transformer, one entry per generation."""
    same_bits: bool = True


def _take_turns(pipeline: Any, transformers: Mapping[str, Any], shape: Shape, repeats: int) -> Turns:
    """Generate by every route in turns, one turn first that does not count; every other goes backwards."""
    turns = Turns({route: [] for route in transformers})
    for turn in range(-1, repeats):
        latents = {}
        for route in list(transformers) if turn % 2 == 0 else reversed(list(transformers)):
            with _watched(transformers[route]) as calls:
                latents[route] = _generate(pipeline, transformers[route], shape, turn)
            assert calls.text == {shape.text}, f"prompts of {calls.text} tokens"
            assert calls.vision == {shape.vision}, f"{calls.vision} vision tokens"
            if turn >= 0:
                turns.times[route].append(Elapsed(calls.wall, calls.cpu))
        turns.same_bits &= torch.equal(latents["armillary"], latents["stock"])
    return turns


def _generate(pipeline: Any, transformer: Any, shape: Shape, turn: int) -> torch.Tensor:
    """The final latents, before the VAE."""
    pipeline.update_components(transformer=transformer)
    length = shape.text - TEMPLATE_TOKENS
    state = pipeline(
        prompt=_text(f"turn {turn}: a robot arm pours tea", length),
        negative_prompt=_text(f"turn {turn}: blurry", length),
        width=shape.pixels,
        height=shape.pixels,
        num_frames=13,
        fps=24.0,
        num_inference_steps=STEPS,
        guidance_scale=6.0,
        generator=torch.Generator("cpu").manual_seed(turn + 1),
        use_system_prompt=False,
        add_resolution_template=False,
        add_duration_template=False,
        output_type="latent",
    )
    latents: torch.Tensor = state.get("latents")
    return latents


def _text(start: str, length: int) -> str:
    return (start + ", and again" * length)[:length]


@dataclass
class Calls:
    """Time inside a transformer, and the lengths that it was given."""

    wall: float = 0.0
    cpu: float = 0.0
    text: set[int] = field(default_factory=set)
    vision: set[int] = field(default_factory=set)


@contextmanager
def _watched(transformer: Any) -> Iterator[Calls]:
    """Add up the calls within the block, from before the first hook to after the last."""
    calls = Calls()

    def enter(_: Any, __: Any, inputs: Mapping[str, Any]) -> None:
        calls.text.add(inputs["und_len"])
        calls.vision.add(inputs["sequence_length"] - inputs["und_len"])
        calls.cpu -= time.process_time()
        calls.wall -= time.perf_counter()

    def leave(*_: Any) -> None:
        calls.wall += time.perf_counter()
        calls.cpu += time.process_time()

    hooks = [
        transformer.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
        transformer.register_forward_hook(leave),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _figures(shape: Shape, turns: Turns) -> dict[str, Any]:
    wall, cpu = (
        {r: [getattr(e, clock) for e in es] for r, es in turns.times.items()} for clock in Elapsed._fields
    )
    ratio = ratios(wall["armillary"], wall["stock"])
    return {
        "ratio": ratio,
        "goal": shape.goal,
        "met": ratio["of_medians"] <= shape.goal,
        "cpu_ratio": ratios(cpu["armillary"], cpu["stock"]),
        "seconds": {route: spread(values) for route, values in wall.items()},
        "cpu_seconds": {route: spread(values) for route, values in cpu.items()},
        "same_bits": turns.same_bits,
    }


if __name__ == "__main__":
    sys.exit(main())
