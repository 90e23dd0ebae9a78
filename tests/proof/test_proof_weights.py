"""A rank's weights and buffers against those of the whole model, by fingerprint."""

from typing import Any

import torch
from torch import nn

from armillary.layout import Layout
from armillary.models.registry import resolve
from armillary.parallel.fingerprint import fingerprint
from armillary.parallel.mesh import build_mesh
from armillary.parallel.tensor import take_ranges
from armillary.proof.weights import Prints, differing, expected_prints

ALONE = build_mesh(Layout())
PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(3))


def tiny() -> Any:
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([Block()])
    return model


def prints(tp: int = 1) -> Prints:
    return expected_prints(tiny(), resolve(tiny(), Layout(tp=tp), plan=PLAN))


def test_the_same_weights_differ_nowhere() -> None:
    assert differing(tiny(), ALONE, prints()) == {}


def test_a_changed_bit_is_named() -> None:
    model = tiny()
    model.layers[0].norm.weight.data[0] = 1.0000001
    assert differing(model, ALONE, prints()) == {"layers.0.norm.weight": "bits"}


def test_a_buffer_of_another_dtype_or_shape_is_named() -> None:
    model = tiny()
    model.layers[0].scale = torch.ones(3, dtype=torch.bfloat16)
    assert differing(model, ALONE, prints()) == {"layers.0.scale": "dtype"}
    model.layers[0].scale = torch.ones(2)
    assert differing(model, ALONE, prints()) == {"layers.0.scale": "shape"}


def test_each_rank_of_a_split_parameter_has_a_print_of_its_ranges() -> None:
    found, whole = prints(tp=2), tiny().layers[0].up.weight.detach()
    first, second = (take_ranges(whole, 0, [rows]) for rows in ((0, 4), (4, 8)))
    assert found["layers.0.up.weight"] == [fingerprint(first), fingerprint(second)]
    assert len(found["layers.0.down.bias"]) == 1
