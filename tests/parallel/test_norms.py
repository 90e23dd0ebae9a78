"""Norms over split features give what the whole norm gives."""

from typing import Any, ClassVar

import pytest
import torch
from diffusers.models.normalization import FP32LayerNorm, RMSNorm
from torch import nn

from armillary.errors import PlanError
from armillary.layout import Layout
from armillary.parallel.collectives import Group
from armillary.parallel.norms import joined_norm
from armillary.parallel.parallelize import parallelize
from armillary.plan.styles import NormSplit
from rank_cases import Told, World, cases_of, run_cases

WIDTH = 48
KINDS: dict[str, Any] = {
    "torch-rms": nn.RMSNorm(WIDTH, eps=1e-6),
    "torch-rms-default-eps": nn.RMSNorm(WIDTH),
    "torch-layer": nn.LayerNorm(WIDTH, eps=1e-5),
    "diffusers-rms": RMSNorm(WIDTH, eps=1e-6),
    "diffusers-rms-bias": RMSNorm(WIDTH, eps=1e-6, bias=True),
    "diffusers-layer": FP32LayerNorm(WIDTH, eps=1e-5),
}


class Normed(nn.Module):
    """Columns, a norm over all of them, rows."""

    PLAN: ClassVar = {"up": "colwise", "norm": NormSplit(), "down": "rowwise"}

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(6, WIDTH), norm, nn.Linear(WIDTH, 6)
        for parameter in norm.parameters():
            nn.init.normal_(parameter, mean=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)))  # type: ignore[no-any-return]


class Foreign(nn.RMSNorm):
    """A norm with a formula of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def made(kind: str) -> Any:
    torch.manual_seed(1)
    return Normed(type(KINDS[kind])(**_arguments(kind)))


def _arguments(kind: str) -> dict[str, Any]:
    norm = KINDS[kind]
    width = "dim" if isinstance(norm, RMSNorm) else "normalized_shape"
    given = {width: WIDTH, "eps": norm.eps}
    return given | ({"bias": True} if kind.endswith("-bias") else {})


@torch.no_grad()
def on_ranks_every_norm_sees_the_features_of_all_ranks(world: World) -> None:
    for kind in KINDS:
        for degree in (2, 4):
            x = 1e3 * torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(2))
            whole = made(kind)(x)
            mesh = world.block(Layout(tp=degree))
            part = parallelize(made(kind), Layout(tp=degree), plan=Normed.PLAN, mesh=mesh)(x)
            assert (part - whole).norm() <= 1e-6 * whole.norm(), kind
            assert all(torch.equal(part, other) for other in mesh.tp.share(part))


def on_ranks_a_norm_of_unknown_formula_is_refused_before_anything_is_split(world: World) -> None:
    model = Normed(Foreign(WIDTH))
    before = model.up.weight.clone()
    with pytest.raises(PlanError, match="norm_split of norm does not know how Foreign computes"):
        parallelize(model, Layout(tp=2), plan=Normed.PLAN, mesh=world.block(Layout(tp=2)))
    assert torch.equal(model.up.weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_alone_the_formula_is_that_of_the_library(kind: str, dtype: torch.dtype) -> None:
    norm = made(kind).norm.to(dtype)
    joined = joined_norm(norm, Group("tp"), WIDTH)
    x = torch.randn(4, WIDTH).to(dtype)
    assert joined is not None
    assert joined(x).dtype == norm(x).dtype
    torch.testing.assert_close(joined(x), norm(x))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_cases(__name__, 4, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, case: str) -> None:
    told.check(case)
