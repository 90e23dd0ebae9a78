"""Every style on small modules: the ranks together compute what the whole module computes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from armillary.errors import EngineError, PlanError
from armillary.layout import Layout
from armillary.parallel.collectives import Group
from armillary.parallel.parallelize import parallelize
from armillary.parallel.tensor import sharding_of, take_ranges
from armillary.plan.styles import Colwise, PackedColwise, PackedRowwise, VocabSplit
from rank_cases import Told, World, cases_of, run_cases

TP2, TP4 = Layout(tp=2), Layout(tp=4)


class Planned(nn.Module):
    PLAN: ClassVar[Mapping[str, object]]


class Pair(Planned):
    """Columns, then rows: one reduce. The biases are as large as the rest."""

    PLAN: ClassVar = {"up": "colwise", "down": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 5)
        nn.init.normal_(self.down.bias, mean=3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Fused(Planned):
    """Three projections in one layer."""

    PLAN: ClassVar = {"qkv": PackedColwise([1, 1, 1]), "out": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 3 * 8)
        self.out = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(q * k + v)  # type: ignore[no-any-return]


class Joined(Planned):
    """A layer whose input is two other layers' outputs, one after the other, as in single-stream blocks."""

    PLAN: ClassVar = {"a": "colwise", "b": "colwise", "out": PackedRowwise([1, 3])}

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(6, 24)
        self.out = nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.a(x), self.b(x).square()], dim=-1))  # type: ignore[no-any-return]


class Declared(Joined):
    """The same, with the blocks declared by the layer itself, as diffusers' models do."""

    PLAN: ClassVar = {"a": "colwise", "b": "colwise", "out": PackedRowwise()}

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self.out, "_tp_packed_row_blocks", [8, 24])


class Grouped(nn.Module):
    """Attention with fewer K/V heads, which it counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 24), nn.Linear(8, 12), nn.Linear(8, 12)
        self.o_proj = nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (
            layer(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
            for layer in (self.k_proj, self.v_proj)
        )
        out = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Attending(Planned):
    PLAN: ClassVar = {f"attn.{name}_proj": "colwise" for name in "qkv"} | {"attn.o_proj": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.attn = Grouped()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(x)  # type: ignore[no-any-return]


class Words(Planned):
    """An embedding and the layer that turns states into logits."""

    PLAN: ClassVar = {"embed": VocabSplit(), "head": Colwise(gather=True)}

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 6)
        self.head = nn.Linear(6, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(ids))
        return logits.view(-1, logits.shape[-1])  # as callers do; it needs a contiguous tensor


def made(kind: type[Planned], *arguments: int) -> Any:
    """The same float64 module on every rank: a wrong sum shows far above the rounding."""
    torch.manual_seed(0)
    return kind(*arguments).double()


def split(model: Planned, world: World, layout: Layout) -> Any:
    return parallelize(model, layout, plan=model.PLAN, mesh=world.block(layout))


def assert_same(model: Planned, world: World, layout: Layout, *inputs: torch.Tensor) -> None:
    """Split, a module computes what it computed whole, with the same bits on every rank."""
    whole = [model(x) for x in inputs]
    parts = [split(model, world, layout)(x) for x in inputs[:1]] + [model(x) for x in inputs[1:]]
    for part, expected in zip(parts, whole, strict=True):
        assert part.shape == expected.shape
        assert torch.allclose(part, expected, rtol=1e-12, atol=1e-12), (part - expected).abs().max()
        assert all(torch.equal(part, other) for other in world.block(layout).tp.share(part))


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@torch.no_grad()
def on_ranks_columns_then_rows_give_the_whole_with_each_bias_once(world: World) -> None:
    for layout in (TP2, TP4):
        assert_same(made(Pair), world, layout, noise(3, 6), noise(2, 3, 6), noise(6), noise(0, 6))


@torch.no_grad()
def on_ranks_attention_that_nobody_describes_is_told_how_many_heads_a_rank_has(world: World) -> None:
    assert_same(made(Attending), world, TP2, noise(3, 5, 8))
    assert_same(made(Attending), world, TP4, noise(3, 5, 8))  # a K/V head on two ranks


@torch.no_grad()
def on_ranks_fused_layers_are_cut_part_by_part(world: World) -> None:
    for kind in (Fused, Joined, Declared):
        for layout in (TP2, TP4):
            assert_same(made(kind), world, layout, noise(3, 6), noise(2, 3, 6))


@torch.no_grad()
def on_ranks_any_vocabulary_is_looked_up_and_gives_whole_logits(world: World) -> None:
    for vocabulary in (321, 322, 5, 3, 1):  # the last two have fewer rows than ranks
        ids = torch.arange(2 * vocabulary).view(2, -1) % vocabulary
        for layout in (TP2, TP4):
            assert_same(made(Words, vocabulary), world, layout, ids, ids[:, :1])


@torch.no_grad()
def on_ranks_looked_up_rows_are_bit_equal(world: World) -> None:
    ids = torch.randint(0, 321, (40,), generator=torch.Generator().manual_seed(1))
    model = made(Words, 321).bfloat16()
    expected = model.embed(ids)
    assert torch.equal(split(model, world, TP4).embed(ids), expected)


@torch.no_grad()
def on_ranks_an_id_outside_the_vocabulary_is_refused_on_every_rank(world: World) -> None:
    model = split(made(Words, 321), world, TP4)
    for wrong in (321, -1, 10**6):
        with pytest.raises(IndexError):
            model(torch.tensor([5, wrong]))


@torch.no_grad()
def on_ranks_the_order_of_the_ranks_decides_who_holds_what(world: World) -> None:
    for ranks in ([1, 0], [3, 1]):
        mesh = world.mesh(TP2, ranks)
        if mesh is None:
            continue
        for model, x in ((made(Words, 5), torch.arange(5)), (made(Pair), noise(3, 6))):
            whole, weight = model(x), next(model.parameters()).clone()
            parallelize(model, TP2, plan=model.PLAN, mesh=mesh)
            first, last = weight.tensor_split(2)
            assert torch.equal(next(model.parameters()), last if ranks[1] == world.rank else first)
            assert torch.allclose(model(x), whole, rtol=1e-12, atol=1e-12)


def on_ranks_a_shard_is_a_plain_tensor_that_owns_its_memory(world: World) -> None:
    for kind in (Pair, Fused, Joined):
        model = split(made(kind), world, TP4)
        for parameter in model.parameters():
            assert type(parameter.data) is torch.Tensor
            assert parameter.is_contiguous()
            assert parameter.untyped_storage().nbytes() == parameter.nbytes
            assert not parameter.requires_grad


def on_ranks_modules_stay_what_they_are_and_know_both_sizes(world: World) -> None:
    model = made(Pair)
    before = dict(model.named_modules())
    split(model, world, TP4)
    assert dict(model.named_modules()) == before
    assert (type(model), type(model.up)) == (Pair, nn.Linear)
    assert (model.up.out_features, model.up.full_out_features) == (4, 16)
    assert (model.down.in_features, model.down.full_in_features) == (4, 16)
    assert model.down.out_features == 5
    sharding = sharding_of(model)
    assert sharding is not None
    assert sharding.mesh.layout == TP4


@torch.no_grad()
def on_ranks_state_dict_and_hooks_go_on_working(world: World) -> None:
    model = split(made(Pair), world, TP4)
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    assert {name: [*tensor.shape] for name, tensor in state.items()} == {
        "up.weight": [4, 6],
        "up.bias": [4],
        "down.weight": [5, 4],
        "down.bias": [5],
    }
    model.load_state_dict(state)
    assert torch.equal(model.up.weight, state["up.weight"])
    seen: list[Any] = []
    model.down.register_forward_hook(lambda module, given, out: seen.append(out))
    out = model(noise(3, 6))
    assert seen[0] is out


def on_ranks_a_backward_pass_is_refused(world: World) -> None:
    model = split(made(Pair), world, TP4)
    with pytest.raises(RuntimeError, match="does not require grad"):
        model(noise(3, 6)).sum().backward()
    with pytest.raises(EngineError, match="no gradients"):
        model(noise(3, 6).requires_grad_())


@torch.no_grad()
def on_ranks_half_precision_stays_half_precision(world: World) -> None:
    model = made(Pair).bfloat16()
    x = noise(3, 6).bfloat16()
    whole = model(x)
    out = split(model, world, TP4)(x)
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out, whole, rtol=3e-2, atol=3e-2)


def test_ranges_are_taken_in_order_into_memory_of_their_own() -> None:
    whole = torch.arange(24).view(4, 6)
    part = take_ranges(whole, 1, [(4, 6), (0, 1)])
    assert part.tolist() == [[4, 5, 0], [10, 11, 6], [16, 17, 12], [22, 23, 18]]
    assert take_ranges(whole, 0, [(1, 2)]).untyped_storage().nbytes() == 6 * 8
    assert take_ranges(whole, 0, []).shape == (0, 6)


def test_one_rank_computes_with_the_stock_forward() -> None:
    model = made(Pair)
    parallelize(model, Layout(), plan=Pair.PLAN)
    assert "forward" not in vars(model.down)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert Group("tp").all_reduce(torch.ones(1, requires_grad=True)).requires_grad


class Halved(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Grown(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 8


@pytest.mark.parametrize(
    ("module", "style", "line"),
    [
        (Halved(16, 5), "rowwise", "rowwise of down would pass over the forward that Halved has of its own"),
        (Grown(16, 5), "vocab_split", "vocab_split of down would pass over the forward that Grown has"),
        (nn.Embedding(16, 5, max_norm=1.0), "vocab_split", "vocab_split of down: max_norm=1.0 changes rows"),
    ],
)
def test_a_layer_that_computes_in_a_way_of_its_own_is_refused(
    module: nn.Module, style: str, line: str
) -> None:
    model = nn.ModuleDict({"up": nn.Linear(6, 16), "down": module})
    plan = {"down": style} | ({"up": "colwise"} if style == "rowwise" else {})
    with pytest.raises(PlanError, match=line):
        parallelize(model, TP2, plan=plan)
    parallelize(model, Layout(), plan=plan)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
