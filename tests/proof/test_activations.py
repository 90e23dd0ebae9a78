"""What one process keeps of its activations, and how a rank's part is laid beside it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from armillary.proof.activations import Apart, Comparer, Keeper, Part, places
from armillary.proof.watch import Place, watched

WHOLE = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
LAYER = Place("layers.0.to_q", "output", 0)


def apart(folder: Path, local: torch.Tensor, part: Part) -> Apart | None:
    """`WHOLE` is kept by one process; how far is `local` from its part of it?"""
    keeper = Keeper(folder / "kept")
    keeper.see(0, LAYER, WHOLE)
    keeper.write()
    comparer = Comparer(folder / "kept", part)
    comparer.see(0, LAYER, local)
    return comparer.apart.get((0, LAYER))


def test_the_same_tensor_is_not_apart(tmp_path: Path) -> None:
    found = apart(tmp_path, WHOLE, Part())
    assert found is not None
    assert found.relative == 0


def test_a_ranks_features_are_held_against_its_ranges(tmp_path: Path) -> None:
    part = Part({("layers.0.to_q", "output"): ((10, 20), (30, 40))})
    local = torch.cat([WHOLE[:, 10:20], WHOLE[:, 30:40]], dim=1)
    found = apart(tmp_path, local, part)
    assert found is not None
    assert found.relative == 0


def test_a_ranks_rows_are_held_against_its_place_among_them(tmp_path: Path) -> None:
    found = apart(tmp_path, WHOLE[200:], Part(positions=3, position=2))
    assert found is not None
    assert found.relative == 0


def test_rows_of_another_rank_show(tmp_path: Path) -> None:
    found = apart(tmp_path, WHOLE[:100], Part(positions=3, position=2))
    assert found is not None
    assert found.relative == pytest.approx(1.4, abs=0.2)


def test_what_cannot_be_laid_beside_it_is_passed_over(tmp_path: Path) -> None:
    assert apart(tmp_path, WHOLE[:77], Part()) is None


def test_a_norm_of_split_heads_is_passed_over_because_its_heads_are_not_known() -> None:
    part = Part({("attn.to_q", "output"): ((0, 32),)}, positions=2)
    assert part.indices(Place("attn.norm_q", "output", 0), (7, 8, 16), (7, 4, 16)) is None
    assert part.indices(Place("norm", "output", 0), (7, 8, 16), (7, 4, 16)) is not None


def test_not_a_number_is_infinitely_far(tmp_path: Path) -> None:
    found = apart(tmp_path, WHOLE * float("nan"), Part())
    assert found is not None
    assert found.relative == float("inf")


def test_a_branch_of_guidance_is_held_against_its_own_calls(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "kept")
    for call in range(4):
        keeper.see(call, LAYER, WHOLE + call)
    keeper.write()
    second = Comparer(tmp_path / "kept", Part(), (2, 1))
    for call in range(2):
        second.see(call, LAYER, WHOLE + (2 * call + 1))
    assert {key: found.relative for key, found in second.apart.items()} == {(1, LAYER): 0, (3, LAYER): 0}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(layer(x))
        return x


def test_layers_and_blocks_are_watched_in_order_call_by_call(tmp_path: Path) -> None:
    model, keeper, calls = Model(), Keeper(tmp_path / "kept"), list[int]()
    with watched(model, ["layers.1.0"], keeper.see, calls.append):
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
    keeper.write()
    first = [place for call, place in places(tmp_path / "kept") if call == 0]
    assert calls == [0, 1]
    assert [(p.module, p.number) for p in first[:4]] == [
        ("layers.0.0", 0),
        ("layers.0", 0),
        ("layers.0.0", 1),
        ("layers.0", 1),
    ]
    assert first[4] == Place("layers.1.0", "input", 0)
    assert not model._forward_pre_hooks
