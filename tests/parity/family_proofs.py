"""Law 5 for the plan of a family: on 2 and on 4 ranks, a few steps are those of the whole model."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from denoising import cast, denoise, distance

from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.models.registry import resolve
from armillary.models.tiny_cases import TinyCase, tiny_cases
from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.load import load
from armillary.parallel.parallelize import parallelize
from armillary.parallel.save import save
from rank_cases import World

RANKS = 4
LIMIT = 1e-5
"""Relative L2 that float32 may always be apart (law 5)."""
FUSED = (
    "FluxTransformer2DModel-guidance",
    "Flux2Transformer2DModel-guidance",
    "WanTransformer3DModel-text-to-video",
    "WanTransformer3DModel-image-to-video",
    "MiniMaxH3Transformer3DModel-refiner",
    "CogVideoXTransformer3DModel-5b",
    "SD3Transformer2DModel-3.5-large",  # diffusers cannot run a fused 3.5 medium
    "AuraFlowTransformer2DModel-text-to-image",
)
"""Cases run after `fuse_qkv_projections()` too: classes whose attention then uses the fused layers."""
SAMPLED = {
    "WanTransformer3DModel-image-to-video",
    "LTX2VideoTransformer3DModel-gated",
    "HunyuanVideoTransformer3DModel-token-replace",
    "SD3Transformer2DModel-3.5-medium",
    "ZImageTransformer2DModel-omni",
}
"""Variants with a mechanism of their own."""
CASES = {case.label: case for case in tiny_cases()}


def firsts() -> Iterator[TinyCase]:
    """The first variant of every class."""
    yield from {case.model_class: case for case in reversed(CASES.values())}.values()


def legal(case: TinyCase, model: Any) -> Iterator[Layout]:
    """Layouts of 2 and 4 ranks that the heads allow; 2 always."""
    yield Layout(tp=2)
    try:
        resolve(model, Layout(tp=4))
    except LayoutError:
        return
    yield Layout(tp=4)


def split(model: Any, world: World, layout: Layout) -> Any:
    return parallelize(model, layout, mesh=world.block(layout))


def far(case: TinyCase, made: list[torch.Tensor], whole: list[torch.Tensor]) -> float:
    """How far apart float32 may be: see law 5."""
    found = distance(made, whole)
    if found <= LIMIT:
        return LIMIT
    exact = denoise(case.model().double(), cast(case.inputs(), torch.float64))
    return max(LIMIT, 4 * distance(whole, exact))


def prove(case: TinyCase, world: World, *, fused: bool = False) -> dict[str, float]:
    """Distance by tp degree; the ranks must hold equal bits."""
    found = {}
    model = _made(case, fused)
    whole = denoise(model, case.inputs())
    for layout in legal(case, model):
        made = denoise(split(_made(case, fused), world, layout), case.inputs())
        world.block(layout).tp.agree("outputs", {str(at): fingerprint(one) for at, one in enumerate(made)})
        found[str(layout.tp)] = distance(made, whole)
        assert found[str(layout.tp)] <= far(case, made, whole), (layout, found)
    return found


def _made(case: TinyCase, fused: bool) -> Any:
    model = case.model()
    if fused:
        model.fuse_qkv_projections()
    return model


def prove_roads(case: TinyCase, world: World) -> None:
    """`load` gives the shards that `parallelize` gives, and `save` the checkpoint that was loaded."""
    layout, mesh = Layout(tp=RANKS), world.block(Layout(tp=RANKS))
    folder, again = world.folder / case.label, world.folder / f"{case.label}-again"
    if world.rank == 0:
        case.model().save_pretrained(folder)
    mesh.tp.barrier()
    loaded = load(folder, layout=layout, mesh=mesh, progress=False)
    split_here = split(case.model(), world, layout)
    assert type(loaded) is type(split_here)
    mine, theirs = loaded.state_dict(), split_here.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    made, same = denoise(loaded, case.inputs(), 1), denoise(split_here, case.inputs(), 1)
    assert all(torch.equal(a, b) for a, b in zip(made, same, strict=True))
    save(loaded, again)
    whole = load(again, progress=False).state_dict()
    assert all(torch.equal(whole[name], tensor) for name, tensor in case.model().state_dict().items())


def prove_half(case: TinyCase, world: World) -> None:
    """Law 5 in bfloat16, over one forward."""
    exact = denoise(case.model(), case.inputs(), 1)
    given = cast(case.inputs(), torch.bfloat16)
    one = denoise(case.model().bfloat16(), given, 1)
    for layout in legal(case, case.model()):
        made = denoise(split(case.model().bfloat16(), world, layout), given, 1)
        assert distance(made, exact) <= 2 * distance(one, exact), layout


def proofs(*, complete: bool) -> dict[str, Callable[[World], Any]]:
    """The cases of a test module by name: every variant, or each class's first and those of `SAMPLED`."""
    first = list(firsts())
    chosen = CASES if complete else {c.label: c for c in CASES.values() if c in first or c.label in SAMPLED}
    cases: dict[str, Callable[[World], Any]] = {name: partial(prove, case) for name, case in chosen.items()}
    cases |= {f"{name}-fused": partial(prove, chosen[name], fused=True) for name in FUSED if name in chosen}
    cases |= {f"{case.model_class}-roads": partial(prove_roads, case) for case in first}
    if complete:
        cases |= {f"{case.model_class}-bfloat16": partial(prove_half, case) for case in first}
    return {f"on_ranks_{name}": run for name, run in cases.items()}
