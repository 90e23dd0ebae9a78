"""What is taken where a layout is asked for."""

import pytest
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
