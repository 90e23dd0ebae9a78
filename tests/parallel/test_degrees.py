"""What is taken where a layout is asked for."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diffusers import ContextParallelConfig, ParallelConfig, TensorParallelConfig

from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.parallel.degrees import as_layout


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (Layout(tp=4), Layout(tp=4)),
        (TensorParallelConfig(tp_degree=4), Layout(tp=4)),
        (ContextParallelConfig(ulysses_degree=2, ring_degree=2), Layout(ulysses=2, ring=2)),
        (ContextParallelConfig(ulysses_degree=4), Layout(ulysses=4)),
        (ContextParallelConfig(ulysses_degree=4, ulysses_anything=True), Layout(ulysses=4)),
        (ContextParallelConfig(ring_degree=3, ring_anything=True), Layout(ring=3)),
        (ParallelConfig(tensor_parallel_config=TensorParallelConfig(tp_degree=2)), Layout(tp=2)),
        (ParallelConfig(context_parallel_config=ContextParallelConfig(ring_degree=2)), Layout(ring=2)),
        (ParallelConfig(), Layout()),
    ],
)
def test_diffusers_configs_mean_a_layout(config: object, layout: Layout) -> None:
    assert as_layout(config) == layout


@pytest.mark.parametrize("value", [4, "tp=4", None, {"tp": 4}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(LayoutError, match=r"is not a layout; pass armillary\.Layout"):
        as_layout(value)


@dataclass(frozen=True)
class Mesh:
    """What is looked at of torch's `DeviceMesh`, which only a process group could make."""

    mesh: torch.Tensor
    mesh_dim_names: tuple[str, ...] = ("ring", "ulysses")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"convert_to_fp32": False}, "convert_to_fp32=False, but the parts of a ring's attention are merged"),
        ({"mesh": Mesh(torch.arange(6).view(3, 2))}, r"has \{'ring': 3, 'ulysses': 2\}, and its degrees are"),
        ({"mesh": Mesh(torch.arange(4).view(2, 2), ("ulysses", "ring"))}, "order is cfg, ring, gather, uly"),
        ({"mesh": Mesh(torch.arange(4, 8).view(2, 2))}, r"the config's mesh is on ranks \[4, 5, 6, 7\]"),
    ],
)
def test_what_a_context_config_asks_for_is_done_or_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        as_layout(ContextParallelConfig(ring_degree=2, ulysses_degree=2, **settings))


def test_a_context_config_may_bring_the_mesh_that_a_layout_has() -> None:
    mesh = Mesh(torch.arange(4).view(2, 2, 1), ("ring", "ulysses", "fsdp"))
    assert as_layout(ContextParallelConfig(ring_degree=2, ulysses_degree=2, mesh=mesh)) == Layout(
        ring=2, ulysses=2
    )
