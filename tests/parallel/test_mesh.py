"""A layout on ranks: who is in it, where, and what is refused."""

import pytest
import torch
import torch.distributed as dist

from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.parallel.mesh import build_mesh, refuse_other_mesh
from rank_cases import Told, World, cases_of, run_cases


def test_one_rank_needs_no_process_group() -> None:
    mesh = build_mesh(Layout())
    assert mesh.is_first
    assert mesh.device() == torch.device("cpu")
    assert {axis: group.size for axis, group in mesh.groups.items()} == dict.fromkeys(Layout.AXES, 1)
    assert not dist.is_initialized()


def test_several_ranks_in_an_ordinary_process_are_refused_with_the_command_to_run() -> None:
    with pytest.raises(LayoutError, match=r"tp=2 needs 2 ranks and this is one process; .*torchrun"):
        build_mesh(Layout(tp=2))


def test_a_mesh_of_another_layout_is_refused() -> None:
    refuse_other_mesh(Layout(), build_mesh(Layout()))
    refuse_other_mesh(Layout(tp=2), None)
    with pytest.raises(LayoutError, match=r"is tp=2 and the mesh was built for one rank; .*mesh\.layout"):
        refuse_other_mesh(Layout(tp=2), build_mesh(Layout()))


def on_ranks_tp_is_the_innermost_axis(world: World) -> None:
    mesh = world.mesh(Layout(cfg=2, tp=2))
    assert (mesh.coordinate["cfg"], mesh.coordinate["tp"]) == divmod(world.rank, 2)
    assert mesh.groups["tp"].members == ((0, 1), (2, 3))[world.rank // 2]
    assert mesh.groups["cfg"].members == ((0, 2), (1, 3))[world.rank % 2]
    assert mesh.is_first == (world.rank == 0)


def on_ranks_each_axis_sums_over_its_own_ranks(world: World) -> None:
    mesh = world.mesh(Layout(cfg=2, tp=2))
    mine = torch.tensor(10**world.rank)
    assert mesh.groups["tp"].all_reduce(mine.clone()) == (11, 1100)[world.rank // 2]
    assert mesh.groups["cfg"].all_reduce(mine.clone()) == (101, 1010)[world.rank % 2]
    assert mesh.groups["ulysses"].all_reduce(mine.clone()) == 10**world.rank


def on_ranks_the_place_on_the_mesh_follows_the_order_of_the_ranks(world: World) -> None:
    mesh = world.mesh(Layout(cfg=2, tp=2), [3, 1, 0, 2])
    assert (mesh.coordinate["cfg"], mesh.coordinate["tp"]) == divmod([3, 1, 0, 2].index(world.rank), 2)
    assert mesh.groups["tp"].share(world.rank) == ([3, 1] if world.rank in (1, 3) else [0, 2])
    assert mesh.is_first == (world.rank == 3)


def on_ranks_a_smaller_layout_uses_some_ranks_and_the_others_are_told(world: World) -> None:
    if world.rank in (2, 1):
        assert build_mesh(Layout(tp=2), [2, 1]).tp.rank == [2, 1].index(world.rank)
        return
    with pytest.raises(LayoutError, match=rf"rank {world.rank} is not among the ranks \[2, 1\] of tp=2"):
        build_mesh(Layout(tp=2), [2, 1])


def on_ranks_a_layout_of_one_rank_is_each_ranks_own(world: World) -> None:
    assert build_mesh(Layout()).is_first


def on_ranks_more_ranks_than_there_are_is_refused(world: World) -> None:
    with pytest.raises(LayoutError, match="tp=8 needs 8 ranks and 4 are available"):
        build_mesh(Layout(tp=8))


@pytest.mark.parametrize("ranks", [[0, 0], [0], [0, 1, 2], [3, 4], [-1, 0]])
def test_wrong_ranks_are_refused(told: Told, ranks: list[int]) -> None:
    (message, *others) = told.values("wrong_ranks_are_refused_alike_everywhere")
    assert others == [message] * 3
    assert f"{ranks} are not 2 different ranks of a group of 4" in message


def on_ranks_wrong_ranks_are_refused_alike_everywhere(world: World) -> str:
    messages = []
    for ranks in ([0, 0], [0], [0, 1, 2], [3, 4], [-1, 0]):
        with pytest.raises(LayoutError) as caught:
            build_mesh(Layout(tp=2), ranks)
        messages.append(str(caught.value))
    return "\n".join(messages)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
