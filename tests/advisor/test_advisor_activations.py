"""The peak of a step as the advisor estimates it, beside what the allocator counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from armillary.advisor.memory import exchange_bytes
from armillary.layout import Layout
from armillary.models.cosmos3.cost import LayerShape, step_bytes
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from live_bytes import measured
from packed_forward import Packed
from rank_cases import Told, World, cases_of, run_cases

OFF_BY = 0.15

Shape = tuple[TinyOptions, tuple[int, int, int], int]
"""Options, the grid of the generation rows, and the prompt's tokens."""


def sized(hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int, **more: Any) -> TinyOptions:
    return TinyOptions(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=mlp, **more
    )


SHAPES: dict[str, tuple[Shape, Layout]] = {
    "nano-like": ((sized(128, 8, 2, 16, 384, layers=2), (4, 16, 16), 32), Layout()),
    "super-like": ((sized(80, 16, 2, 8, 400, layers=3), (6, 12, 16), 40), Layout()),
    "edge-like": ((sized(128, 8, 4, 16, 576, layers=2, variant="relu2"), (4, 16, 16), 24), Layout()),
    "half precision": ((sized(128, 8, 2, 16, 384, layers=2, dtype="bfloat16"), (4, 16, 16), 32), Layout()),
    "all heads alike": ((sized(64, 8, 8, 8, 128, layers=2), (8, 16, 16), 16), Layout()),
    "long prompt": ((sized(128, 8, 2, 16, 384, layers=2), (2, 16, 16), 400), Layout()),
    "deep": ((sized(64, 4, 2, 16, 192, layers=6), (4, 16, 16), 32), Layout()),
    "one picture": ((sized(96, 6, 2, 16, 288, layers=2), (1, 32, 40), 32), Layout()),
    "tp": ((sized(128, 8, 2, 16, 512, layers=2), (4, 16, 16), 32), Layout(tp=2)),
    "tp, half precision": (
        (sized(128, 8, 4, 16, 384, layers=2, dtype="bfloat16"), (4, 16, 16), 32),
        Layout(tp=2),
    ),
    "ulysses": ((sized(128, 8, 2, 16, 384, layers=2), (4, 16, 16), 32), Layout(ulysses=2)),
    "gather": ((sized(128, 8, 2, 16, 384, layers=2), (4, 16, 16), 32), Layout(gather=2)),
    "ring": ((sized(128, 8, 2, 16, 384, layers=2), (4, 16, 16), 32), Layout(ring=2)),
    "cfg": ((sized(96, 8, 2, 12, 256, layers=2), (4, 16, 16), 32), Layout(cfg=2)),
}


def estimated(shape: Shape, layout: Layout) -> int:
    options, grid, prompt = shape
    rows = grid[0] * grid[1] * grid[2]
    context = layout.ring * layout.gather * layout.ulysses
    layer = LayerShape(
        rows=-(-rows // context),
        all_rows=rows,
        prompt=prompt,
        hidden=options.hidden,
        query=options.heads * options.head_dim // layout.tp,
        key_value=max(options.kv_heads // layout.tp, 1) * options.head_dim,
        mlp=options.intermediate // layout.tp,
        head_dim=options.head_dim,
        gated=options.variant == "silu",
        itemsize=2 if options.dtype == "bfloat16" else 4,
    )
    return step_bytes(layer) + exchange_bytes(layer, layout)


def _on_ranks(world: World, name: str) -> float:
    """Estimated over measured, on this rank."""
    shape, layout = SHAPES[name]
    options, grid, prompt = shape
    folder = world.folder / f"{name}-{world.rank}"
    write_tiny(folder, replace(options, sound=False, action=False))
    mesh = world.block(layout) if layout.world_size > 1 else world.block(Layout())
    model = load(folder, subfolder="transformer", layout=layout, mesh=mesh, prefill=True)
    packed = Packed(ids=[1 + i % 300 for i in range(prompt)], grids=(grid,))
    given = packed.inputs(model)
    with torch.no_grad():
        model(**given)  # computes the prompt and keeps it
        peak = measured(lambda: model(**given))
    return estimated(shape, layout) / peak


def on_ranks_estimates(world: World) -> dict[str, float]:
    return {name: _on_ranks(world, name) for name in SHAPES}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_peak_of_a_step_is_met(told: Told, name: str) -> None:
    (case,) = cases_of(__name__)
    ratios = [values[name] for values in told.values(case)]
    assert all(abs(ratio - 1) <= OFF_BY for ratio in ratios), ratios
