"""Groups of ranks: what they exchange arrives whole, in mesh order, and differences are told."""

import pytest
import torch

from armillary.errors import EngineError
from armillary.layout import Layout
from armillary.parallel.collectives import Group
from rank_cases import Told, World, cases_of, run_cases

TP4 = Layout(tp=4)
BACKWARDS = ([1, 0], [3, 1], [2, 1])
"""Global ranks whose order in the mesh is not that of their numbers."""


def test_a_group_of_one_gives_back_what_it_gets_without_a_process_group() -> None:
    alone, tensor = Group("tp"), torch.arange(3)
    assert alone.all_reduce(tensor) is tensor
    assert alone.all_gather(tensor, [3], dim=0) is tensor
    assert alone.collect(tensor, [(3,)]) == [tensor]
    assert alone.share("told") == ["told"]
    alone.agree("seeds", {"seed": 1})
    alone.barrier()


def on_ranks_a_sum_is_the_same_bits_everywhere(world: World) -> None:
    tp = world.mesh(TP4).tp
    mine = torch.randn(1001, generator=torch.Generator().manual_seed(world.rank))
    total = tp.all_reduce(mine.clone())
    assert torch.allclose(total, sum(tp.share(mine)), atol=1e-5)
    assert all(torch.equal(total, other) for other in tp.share(total))


def on_ranks_sums_are_right_in_every_dtype(world: World) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64):
        total = world.mesh(TP4).tp.all_reduce(torch.full((5,), world.rank + 1, dtype=dtype))
        assert total.dtype == dtype
        assert total.tolist() == [10] * 5


def on_ranks_parts_of_uneven_size_are_joined(world: World) -> None:
    for sizes in ([3, 1, 2, 5], [2, 0, 1, 0], [0, 0, 0, 1], [4, 4, 4, 4]):
        whole = torch.arange(3 * sum(sizes)).view(3, -1)
        mine = torch.split(whole, sizes, dim=1)[world.rank]
        joined = world.mesh(TP4).tp.all_gather(mine, sizes, dim=1)
        assert torch.equal(joined, whole)
        assert joined.is_contiguous()


def on_ranks_parts_are_joined_along_any_dimension(world: World) -> None:
    sizes = [1, 3, 0, 2]
    for dim in (0, 1, 2, -1, -2):
        shape = [2, 3, 4]
        shape[dim] = sum(sizes)
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        mine = torch.split(whole, sizes, dim=dim)[world.rank]
        assert torch.equal(world.mesh(TP4).tp.all_gather(mine, sizes, dim), whole)


def on_ranks_the_first_rank_collects_parts_of_different_shape(world: World) -> None:
    shapes = [(2, 3), (0, 3), (1, 3), (4, 3)]
    mine = torch.full(shapes[world.rank], world.rank, dtype=torch.bfloat16)
    parts = world.mesh(TP4).tp.collect(mine, shapes)
    if world.rank > 0:
        assert parts is None
        return
    assert [tuple(part.shape) for part in parts] == shapes
    assert all((part == rank).all() for rank, part in enumerate(parts))


def on_ranks_mesh_order_rules_whatever_the_ranks_numbers(world: World) -> None:
    for ranks in BACKWARDS:
        mesh = world.mesh(Layout(tp=2), ranks)
        if mesh is None:
            continue
        mine = torch.tensor([float(mesh.tp.rank)])
        assert ranks[mesh.tp.rank] == world.rank
        assert mesh.tp.share(world.rank) == ranks
        assert mesh.tp.all_gather(mine, [1, 1], dim=0).tolist() == [0, 1]
        collected = mesh.tp.collect(mine, [(1,), (1,)])
        assert collected == (None if mesh.tp.rank else [0, 1])


def on_ranks_equal_facts_agree(world: World) -> None:
    world.mesh(TP4).tp.agree("seeds", {"seed": 7, "guidance": 6.0})


def on_ranks_a_difference_is_an_error_on_every_rank_that_names_it(world: World) -> None:
    facts = {"seed": 7, "steps": 4 + (world.rank == 2)}
    with pytest.raises(EngineError) as caught:
        world.mesh(TP4).tp.agree("the request", facts)
    assert "4 ranks of axis tp differ in the request: steps is [4, 4, 5, 4]" in str(caught.value)
    assert "seed" not in str(caught.value)


def on_ranks_a_fact_that_only_one_rank_has_is_a_difference(world: World) -> None:
    with pytest.raises(EngineError, match=r"seed is \[1, None, None, None\]"):
        world.mesh(TP4).tp.agree("seeds", {"seed": 1} if world.rank == 0 else {})


def on_ranks_many_differences_are_counted(world: World) -> None:
    with pytest.raises(EngineError, match="and 7 more"):
        world.mesh(TP4).tp.agree("seeds", {str(i): world.rank for i in range(10)})


def on_ranks_gradients_are_refused_instead_of_being_wrong(world: World) -> None:
    with pytest.raises(EngineError, match=r"no gradients.*torch\.no_grad"):
        world.mesh(TP4).tp.all_reduce(torch.ones(1, requires_grad=True))
    with pytest.raises(EngineError, match="no gradients"):
        world.mesh(TP4).tp.all_gather(torch.ones(1, requires_grad=True), [1] * 4, dim=0)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
