"""Context parallelism: rows over ranks, and every query sees every key exactly once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from thread_groups import on_threads

from armillary.errors import EngineError, LayoutError
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import VARIANTS, TinyOptions, write_tiny
from armillary.parallel.context import Context, Rows
from armillary.parallel.load import load
from packed_forward import Packed, relative_distance
from rank_cases import Told, World, cases_of, run_cases

LIMIT = 1e-5
"""Relative L2 that float32 may be apart (law 5)."""
FAR = 1e-2
"""A fault shows far above it."""

pytestmark = pytest.mark.timeout(900)


@given(length=st.integers(0, 50), positions=st.integers(1, 12))
def test_rows_lie_on_the_positions_in_order_each_on_one(length: int, positions: int) -> None:
    rows = Rows.of(length, positions)
    places = [row for start, stop in rows.ranges for row in range(start, stop)]
    counts = [rows.count(position) for position in range(positions)]
    assert places == list(range(length))
    assert max(counts) - min(counts) <= 1


@dataclass(frozen=True)
class Case:
    """One attention: a prompt of `text` keys, `length` rows, and the context mesh that shares them."""

    outer: str
    outer_size: int
    ulysses: int
    heads: tuple[int, int]
    length: int
    text: int

    def tensors(self) -> list[torch.Tensor]:
        """query, key, value, and the prompt's key and value."""
        generator = torch.Generator().manual_seed(self.length * 31 + self.text)
        query_heads, heads = self.heads
        shapes = [(self.length, query_heads), *[(self.length, heads)] * 2, *[(self.text, heads)] * 2]
        return [torch.randn(*shape, 8, generator=generator) for shape in shapes]

    def shared(self, text_copies: int = 1) -> torch.Tensor:
        """Over the mesh; `text_copies` counts the prompt's keys more than once, which is a fault."""
        query, key, value, *prompt = self.tensors()
        prefix = tuple(part.repeat(text_copies, 1, 1) for part in prompt)

        def on_one(context: Context) -> torch.Tensor:
            rows = context.rows(self.length)
            q, k, v = (context.local(tensor, rows) for tensor in (query, key, value))
            out = context.attention(q, k, v, (prefix[0], prefix[1]), rows, attend)
            assert out.shape == q.shape
            return context.whole(out, rows)

        first, *others = on_threads(self.outer, self.outer_size, self.ulysses, on_one)
        assert all(torch.equal(first, other) for other in others)
        return first

    def alone(self) -> torch.Tensor:
        query, key, value, prompt_key, prompt_value = self.tensors()
        return attend(query, torch.cat([prompt_key, key]), torch.cat([prompt_value, value]))


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(0, 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ulysses, key_value = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    query = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n % key_value == 0 and n % ulysses == 0]))
    return Case(
        draw(st.sampled_from(["ring", "gather"])),
        draw(st.integers(1, 4)),
        ulysses,
        (query, key_value),
        draw(st.integers(1, 14)),
        draw(st.integers(0, 5)),
    )


@given(case=cases())
@settings(max_examples=120, deadline=None)
def test_attention_over_any_mesh_is_that_of_one_device(case: Case) -> None:
    assert torch.allclose(case.shared(), case.alone(), atol=2e-6)


@pytest.mark.parametrize("outer", ["ring", "gather"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_ranks_without_rows_take_part(outer: str, length: int) -> None:
    case = Case(outer, 4, 2, (4, 2), length, text=3)
    assert torch.allclose(case.shared(), case.alone(), atol=2e-6)


@pytest.mark.parametrize("outer", ["ring", "gather"])
def test_text_keys_counted_once_per_rank_would_be_seen(outer: str) -> None:
    case = Case(outer, 4, 1, (4, 2), length=9, text=5)
    assert relative_distance([case.shared(text_copies=4)], [case.alone()]) > FAR


def test_one_rank_passes_keys_through_without_a_copy() -> None:
    case = Case("gather", 1, 1, (4, 4), length=5, text=2)
    seen: list[Any] = []

    def watch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.append((query, key.shape))
        return query

    def on_one(context: Context) -> None:
        query, key, value, *prompt = case.tensors()
        context.attention(query, key, value, (prompt[0], prompt[1]), context.rows(5), watch)
        assert seen[0][0] is query

    on_threads("gather", 1, 1, on_one)
    assert seen[0][1] == (7, 4, 8)


LAYOUTS = [
    Layout(gather=3),
    Layout(gather=4),
    Layout(ring=3),
    Layout(ulysses=4),
    Layout(ring=2, ulysses=2),
    Layout(gather=2, ulysses=2),
    Layout(ulysses=2, tp=2),
    Layout(gather=2, tp=2),
    Layout(ring=2, tp=2),
]
CHECKPOINTS = {
    "silu-bias": TinyOptions(bias=True, layers=2),
    "relu2-bias": TinyOptions(variant="relu2", bias=True, layers=2),
    "silu-k-norm-for-gen": replace(VARIANTS["silu-k-norm-for-gen"], layers=2),
    "two-kv-heads": TinyOptions(kv_heads=2, layers=2),
}
FEW = LAYOUTS[3:7]
"""Each axis once."""
PACKS = [
    Packed(sounds=[5], actions=[3]),
    Packed(ids=[4], grids=[(1, 1, 1)]),
    Packed(ids=[4], grids=[(1, 1, 1), (1, 1, 2)]),
    Packed(ids=range(12), grids=[(1, 3, 3), (2, 1, 2)], sounds=[1, 4], actions=[2, 2]),
]


def on_ranks_every_layout_and_kind_of_token(world: World) -> float:
    """Relative L2 of the layouts on a group of 4, every kind of token, ragged and tiny lengths."""
    distances = []
    for folder in (world.folder / name for name in CHECKPOINTS):
        whole = load(folder, subfolder="transformer", progress=False)
        expected = [pack.run(whole) for pack in PACKS]
        for layout in LAYOUTS if folder.name == "silu-bias" else FEW:
            if mesh := world.mesh(layout):
                model = loaded(folder, mesh)
                for pack, wanted in zip(PACKS, expected, strict=True):
                    parts = pack.run(model)
                    distances.append(relative_distance(parts, wanted))
                    assert distances[-1] <= LIMIT, (folder.name, str(layout), pack)
                    bits = [part.numpy().tobytes() for part in parts]
                    assert all(other == bits for other in mesh.everyone.share(bits))
    return max(distances)


def loaded(folder: Path, mesh: Any) -> Any:
    return load(folder, subfolder="transformer", layout=mesh.layout, mesh=mesh, progress=False)


def on_ranks_planted_faults_are_far_off(world: World) -> None:
    """Text keys counted once per rank, and the extra key norm left out."""
    folder = world.folder / "silu-k-norm-for-gen"
    whole = PACKS[0].run(load(folder, subfolder="transformer", progress=False))
    for layout in (Layout(gather=4), Layout(ring=4), Layout(ulysses=4)):
        model = loaded(folder, world.mesh(layout))
        prefill = model._run_decoder_stack.__self__
        right = prefill.context
        prefill.context = CountsTextOncePerRank(right.ulysses, right.gather, right.ring)
        assert relative_distance(PACKS[0].run(model), whole) > FAR
        prefill.context = right
        prefill.store.clear()
        for layer in model.layers:
            layer.self_attn.k_norm_und_for_gen = None
        assert relative_distance(PACKS[0].run(model), whole) > FAR


class CountsTextOncePerRank(Context):
    """What a released peer does."""

    def attention(
        self, query: Any, key: Any, value: Any, prefix: Any, rows: Any, attend: Any, **others: Any
    ) -> Any:
        copies = tuple(part.repeat(self.size, 1, 1) for part in prefix)
        return super().attention(query, key, value, copies, rows, attend, **others)


def on_ranks_bytes_on_the_wire_are_those_of_the_formula(world: World) -> None:
    """docs/layouts.md, on the first rank, which has most rows."""
    pack = PACKS[0]
    heads, key_value, size, hidden, item, layers = 8, 4, 16, 64, 4, 2
    for layout in LAYOUTS:
        mesh = world.mesh(layout)
        if mesh is None:
            continue
        model = loaded(world.folder / "silu-bias", mesh)
        pack.run(model)  # the prompt is computed, and what it sends is no part of a step
        before = mesh.traffic()
        pack.run(model)
        sent = {axis: nbytes - before[axis] for axis, nbytes in mesh.traffic().items()}
        outer, u, t = max(layout.ring, layout.gather), layout.ulysses, layout.tp
        rows = -(-pack.tokens // (outer * u))
        q, k = heads // t, max(key_value // t, u)
        chunk = sum(Rows.of(pack.tokens, outer * u).count(p) for p in range(u))
        pairs = layers * (outer - 1) * chunk * 2 * (k // u) * size * item
        whole = (outer - 1) * chunk * hidden * item
        expected = {
            "cfg": 0,
            "tp": 2 * (t - 1) * (2 * layers * rows + len(pack.ids)) * hidden * item // t,
            "ulysses": layers * (u - 1) * rows * (q + 2 * k) * size * item // u
            + layers * (chunk - rows) * q // u * size * item
            + (u - 1) * rows * hidden * item,
            "gather": pairs + whole if layout.gather > 1 else 0,
            "ring": 0,
        }
        if layout.ring > 1:
            passed = ring_chunks(pack.tokens, outer, u)
            expected["ring"] = layers * passed * 2 * (k // u) * size * item + whole
        if world.rank == 0:
            assert sent == expected, str(layout)


def ring_chunks(tokens: int, ring: int, ulysses: int) -> int:
    """Rows that the first rank passes on: its own chunk and those it has received, but the last."""
    rows = Rows.of(tokens, ring * ulysses)
    chunks = [sum(rows.count(c * ulysses + p) for p in range(ulysses)) for c in range(ring)]
    return sum(chunks[-step % ring] for step in range(ring - 1))


def on_ranks_inputs_that_differ_are_an_error_on_every_rank(world: World) -> None:
    """Shape, length and dtype; before any collective, so that the model works afterwards."""
    for layout in (Layout(tp=4), Layout(gather=2, tp=2), Layout(ulysses=4), Layout(ring=2, ulysses=2)):
        model = loaded(world.folder / "silu-bias", world.mesh(layout))
        odd = world.rank == 2
        longer = Packed(grids=[(3, 2, 4) if odd else (3, 2, 3)])
        with pytest.raises(EngineError, match=r"the 4 ranks of ax.s .* differ in the inputs of the model: "):
            longer.run(model)
        inputs = Packed().inputs(model)
        if odd:
            inputs["vision_tokens"] = [tensor.double() for tensor in inputs["vision_tokens"]]
        with pytest.raises(EngineError, match=r"vision_tokens.*float64\[48, 3, 4, 6\]"):
            model(**inputs)
        assert all(part.isfinite().all() for part in Packed().run(model))


def on_ranks_other_weights_on_a_context_rank_are_refused(world: World) -> None:
    folder = world.folder / ("other-seed" if world.rank == 1 else "silu-bias")
    for layout in (Layout(gather=4), Layout(cfg=2, ulysses=2)):
        with pytest.raises(EngineError, match="differ in checkpoint"):
            loaded(folder, world.mesh(layout))


def on_ranks_gradients_are_refused(world: World) -> None:
    model = loaded(world.folder / "silu-bias", world.mesh(Layout(gather=4)))
    inputs = Packed().inputs(model)
    inputs["vision_tokens"][0].requires_grad_()
    with pytest.raises(EngineError, match="no gradients"):
        model(**inputs)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("ranks")
    for name, options in {**CHECKPOINTS, "other-seed": TinyOptions(bias=True, layers=2, seed=1)}.items():
        write_tiny(folder / name, options)
    return run_cases(__name__, 4, folder, step_timeout=600)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, record_property: Any, case: str) -> None:
    values: Sequence[Any] = told.values(case)
    record_property("distance", values[0])


@pytest.mark.parametrize("degrees", [{"ulysses": 3}, {"ulysses": 16}, {"ulysses": 4, "tp": 4}])
def test_heads_that_ulysses_cannot_share_are_refused_with_the_degrees_that_can(
    tmp_path_factory: pytest.TempPathFactory, degrees: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("heads") / "tiny"
    write_tiny(folder, TinyOptions(layers=1))
    with pytest.raises(LayoutError, match=r"ulysses=\d+ cannot share the \d query .*; use ulysses=1"):
        load(folder, subfolder="transformer", layout=Layout(**degrees))
