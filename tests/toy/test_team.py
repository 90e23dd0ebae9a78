import sys
from pathlib import Path

import pytest
import torch
from toy.team import Team, run


def test_the_shares_of_a_batch_hold_every_sample_once() -> None:
    shares = [Team(rank, 3).share(8) for rank in range(3)]
    assert sorted(i for share in shares for i in share) == list(range(8))


def test_noise_differs_between_steps_and_processes_and_comes_again() -> None:
    like = torch.zeros(4)
    draws = [Team(rank, 2).noise(like, step) for step in range(2) for rank in range(2)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 4
    assert torch.equal(Team(1, 2).noise(like, 1), draws[-1])


def write_average(out: Path, team: Team) -> None:
    """What each process of the test below does: its gradient is its rank, the file says what became of it."""
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.full((2, 2), float(team.rank))
    team.average_gradients([weight])
    team.wait()
    torch.save(weight.grad, out / f"{team.rank}.pt")


def test_two_processes_end_up_with_the_mean_of_their_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", str(tmp_path), "--processes", "2"])
    run(write_average, None)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), torch.full((2, 2), 0.5))
