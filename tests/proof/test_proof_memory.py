"""Whether a proof fits the machine is said before a weight is read."""

import pytest

from armillary.layout import Layout
from armillary.models.registry import resolve, skeleton_for
from armillary.proof import memory

SUPER = {"hidden_size": 5120, "num_attention_heads": 64, "num_hidden_layers": 64, "intermediate_size": 25600}


def fits(monkeypatch: pytest.MonkeyPatch, free: float, layers: int = 64) -> tuple[bool, str]:
    monkeypatch.setattr(memory, "available", lambda: int(free))
    skeleton = skeleton_for(
        "Cosmos3OmniTransformer", {**SUPER, "num_hidden_layers": layers}, dtype="bfloat16"
    )
    layout = Layout(cfg=2, tp=2)
    exact, problems = memory.fits(resolve(skeleton, layout), layout, has_blocks=True)
    return exact, "\n".join(map(str, problems))


def test_a_machine_with_room_computes_in_float64_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(monkeypatch, 1e12) == (True, "")


def test_one_with_room_for_float32_alone_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fits(monkeypatch, 3.5e11) == (False, "")


def test_one_without_room_is_told_to_how_many_blocks_it_can_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, problems = fits(monkeypatch, 4e10)
    assert not exact
    assert "the whole model in float32 takes" in problems
    assert "the weights of all ranks take" in problems
    layers = int(problems.rpartition("--layers ")[2])
    assert fits(monkeypatch, 4e10, layers) == (True, "")
    assert not fits(monkeypatch, 4e10, layers + 1)[0]


def test_a_machine_that_does_not_say_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", lambda self: "")
    assert memory.available() is None
