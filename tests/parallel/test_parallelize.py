"""A model in memory, split in place: refused as a whole or done as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from armillary.errors import ArmillaryError, EngineError, LayoutError, PlanError
from armillary.layout import Layout
from armillary.parallel.parallelize import parallelize
from armillary.parallel.tensor import sharding_of
from rank_cases import Told, World, cases_of, run_cases

TP2, TP4 = Layout(tp=2), Layout(tp=4)
PLAN = {"embed": "vocab_split", "blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(6, width)
        self.down = nn.Linear(width, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]


class Small(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


def small(width: int = 16, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small(width)


def everything_of(model: nn.Module) -> dict[str, Any]:
    """All that a split changes: which tensors lie where, their bits, and every module's own attributes."""
    tensors = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    hidden = ("_parameters", "_buffers", "_modules")
    own = {path: {k: v for k, v in vars(m).items() if k not in hidden} for path, m in model.named_modules()}
    return {"tensors": tensors, "attributes": own}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    before = everything_of(model)
    yield
    after = everything_of(model)
    assert after["attributes"] == before["attributes"]
    for name, (identity, bits) in before["tensors"].items():
        assert after["tensors"][name][0] == identity, f"{name} was replaced"
        assert torch.equal(after["tensors"][name][1], bits)


def refusals(
    mesh_of: Callable[[Layout], Any],
) -> Iterator[tuple[type[ArmillaryError], str, Any, dict[str, Any]]]:
    """(error, message, layout, arguments) of calls that are refused, whoever makes them."""
    yield LayoutError, r"tp=3 does not divide the 16 features", Layout(tp=3), {"plan": PLAN}
    yield PlanError, r"blocks\.\*\.upp", TP2, {"plan": {"blocks.*.upp": "colwise"}}
    yield PlanError, "'sideways'", TP2, {"plan": {"embed": "sideways"}}
    yield PlanError, "colwise cannot split embed", TP2, {"plan": {"embed": "colwise"}}
    yield PlanError, "Small has no registered plan", TP2, {}
    yield LayoutError, "is not a layout", 2, {"plan": PLAN}
    yield LayoutError, "ulysses=2", Layout(ulysses=2), {"plan": PLAN}
    yield LayoutError, r"pass layout=mesh\.layout", TP2, {"plan": PLAN, "mesh": mesh_of(Layout())}


@pytest.mark.parametrize("case", range(8))
def test_a_refused_call_leaves_the_model_as_it_was(case: int) -> None:
    from armillary.parallel.mesh import build_mesh

    error, message, layout, arguments = [*refusals(build_mesh)][case]
    model = small()
    with untouched(model), pytest.raises(error, match=message):
        parallelize(model, layout, **arguments)


def test_a_single_process_is_told_how_to_start_ranks_and_the_model_stays() -> None:
    model = small()
    with untouched(model), pytest.raises(LayoutError, match="torchrun --nproc-per-node 2"):
        parallelize(model, TP2, plan=PLAN)


def on_ranks_a_refused_call_leaves_every_ranks_model_as_it_was(world: World) -> None:
    for error, message, layout, arguments in refusals(world.mesh):
        model = small()
        with untouched(model), pytest.raises(error, match=message):
            parallelize(model, layout, **arguments)


def on_ranks_a_second_call_is_refused_and_changes_nothing(world: World) -> None:
    model = parallelize(small(), TP4, plan=PLAN, mesh=world.mesh(TP4))
    for layout in (TP4, TP2):
        with untouched(model), pytest.raises(PlanError, match="Small is split over tp=4 already"):
            parallelize(model, layout, plan=PLAN)


def on_ranks_a_model_on_one_rank_may_be_split_later(world: World) -> None:
    model = parallelize(small(), Layout(), plan=PLAN)
    parallelize(model, TP4, plan=PLAN, mesh=world.mesh(TP4))
    assert [*model.get_parameter("blocks.1.up.weight").shape] == [4, 6]


def on_ranks_different_weights_are_named_on_every_rank(world: World) -> None:
    model = small(seed=world.rank // 3)
    with untouched(model), pytest.raises(EngineError) as caught:
        parallelize(model, TP4, plan=PLAN, mesh=world.mesh(TP4))
    assert "the 4 ranks of axis world differ in weights: embed.weight is" in str(caught.value)
    assert "blocks.0.up.weight is" in str(caught.value)
    assert "and 6 more" in str(caught.value)


def on_ranks_one_different_element_is_found(world: World) -> None:
    model = small()
    with torch.no_grad():
        model.blocks[1].down.bias[5] += (world.rank == 3) * 1e-6  # type: ignore[union-attr, index, operator]
    with (
        untouched(model),
        pytest.raises(EngineError, match=r"in weights: blocks\.1\.down\.bias is \[[^;]*\]; give"),
    ):
        parallelize(model, TP4, plan=PLAN, mesh=world.mesh(TP4))


def on_ranks_different_shapes_dtypes_buffers_and_plans_are_found_without_a_hang(world: World) -> None:
    odd = world.rank == 1
    other_buffer = small()
    other_buffer.get_buffer("steps").add_(odd)
    models = [small(32 if odd else 16), small().to(torch.bfloat16 if odd else torch.float32), other_buffer]
    for model in models:
        with untouched(model), pytest.raises(EngineError, match="differ in weights"):
            parallelize(model, TP4, plan=PLAN, mesh=world.mesh(TP4))
    model = small()
    with (
        untouched(model),
        pytest.raises(EngineError, match=r"differ in plan: embed is \['VocabSplit\(\)', None"),
    ):
        parallelize(model, TP4, plan=PLAN, overrides={"embed": None} if odd else None, mesh=world.mesh(TP4))


def on_ranks_a_rank_outside_the_layout_keeps_its_model(world: World) -> None:
    model = small()
    if world.rank < 2:
        assert parallelize(model, TP2, plan=PLAN) is model
        return
    with untouched(model), pytest.raises(LayoutError, match=f"rank {world.rank} is not among the ranks"):
        parallelize(model, TP2, plan=PLAN)


@torch.no_grad()
def on_ranks_overrides_change_the_plan_and_not_the_result(world: World) -> None:
    ids = torch.arange(9)
    whole, model = small().double()(ids), small().double()
    changed = {"embed": None, "blocks.*.up": {"colwise": {"gather": True}}, "blocks.*.down": None}
    parallelize(model, TP4, plan=PLAN, overrides=changed, mesh=world.mesh(TP4))
    sharding = sharding_of(model)
    assert sharding is not None
    assert [*sharding.resolved.shards] == [
        f"blocks.{i}.up.{leaf}" for i in (0, 1) for leaf in ("weight", "bias")
    ]
    assert torch.allclose(model(ids), whole, rtol=1e-12, atol=1e-12)


def on_ranks_whole_parameters_and_buffers_are_not_copied(world: World) -> None:
    model = small()
    kept = {"blocks.0.down.bias": model.get_parameter("blocks.0.down.bias"), "steps": model.steps}
    parallelize(model, TP4, plan=PLAN, mesh=world.mesh(TP4))
    assert model.get_parameter("blocks.0.down.bias") is kept["blocks.0.down.bias"]
    assert model.steps is kept["steps"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
