"""Law 5: a whole generation on several ranks is the one of one process, as closely as rounding allows.

`make test` runs a pairwise sample of variants, modes, degrees and dtypes on one group of 8 ranks, of which
smaller layouts use blocks side by side; `make soak` runs them all, longer and deeper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FAULTS, plant
from forwards import run_forward
from generations import (
    DEGREES,
    DTYPES,
    Generations,
    Latents,
    Row,
    all_rows,
    blocks,
    pairwise,
    write_checkpoint,
    write_media,
)

from armillary.engine.heartbeat import current_heartbeat
from armillary.layout import Layout
from armillary.models.cosmos3.tiny import VARIANTS
from armillary.parallel.load import load
from rank_cases import Told, World, run_cases

RANKS = 8
SAMPLE = pairwise(all_rows())
PLANTED = [
    Row("silu-bias", "text-to-video", False, 8 if fault == "take_another_copy" else 2, "float32", fault)
    for fault in FAULTS
]
LIMIT = 1e-5
"""Relative L2 that float32 may always be apart (law 5)."""

pytestmark = pytest.mark.timeout(1800)


def on_ranks_generations(world: World) -> list[dict[str, Any]]:
    """Run the rows of this rank's blocks; the first rank of a block leaves the latents."""
    meshes = {degree: world.block(Layout(tp=degree)) for degree in DEGREES}
    generations = Generations(world.folder, **world.arguments["size"])
    told = []
    rows = [Row(*row) for row in world.arguments["rows"]]
    for number, (row, first) in enumerate(blocks(rows, world.size)):
        current_heartbeat().beat()
        if first <= world.rank < first + row.tp:
            mesh = meshes[row.tp]
            latents = generations.latents(row, row.dtype, mesh, partial(plant, row.fault))
            bits = {what: tensor.numpy().tobytes() for what, tensor in latents.items()}
            told.append({"number": number, "equal": all(other == bits for other in mesh.tp.share(bits))})
            if mesh.is_first:
                torch.save(latents, world.folder / f"latents-{number}")
    return told


def on_ranks_one_forward_with_sound_and_actions(world: World) -> None:
    for variant in ("silu-bias", "relu2-bias", "silu-k-norm-for-gen"):
        folder = write_checkpoint(world.folder, variant, world.arguments["size"]["layers"])
        whole = run_forward(load(folder, subfolder="transformer"))
        for degree in DEGREES:
            layout = Layout(tp=degree)
            mesh = world.block(layout)
            parts = run_forward(load(folder, subfolder="transformer", layout=layout, mesh=mesh))
            for part, expected in zip(parts, whole, strict=True):
                assert relative(part, expected) <= LIMIT
                assert all(torch.equal(part, other) for other in mesh.tp.share(part))


@dataclass
class Comparison:
    """What ranks have generated, beside the same in one process."""

    folder: Path
    rows: Sequence[Row]
    told: Told
    alone: Generations

    def ranks_agree(self, row: Row) -> bool:
        """Whether all ranks ended with the same bits."""
        number = self.rows.index(row)
        ranks = self.told.values("generations")
        said = [told["equal"] for rank in ranks for told in rank if told["number"] == number]
        assert len(said) == row.tp
        return all(said)

    def distances(self, row: Row) -> dict[str, tuple[float, float]]:
        """By kind of latents: how far the ranks are from one process, and how far they may be."""
        ranks: Latents = torch.load(self.folder / f"latents-{self.rows.index(row)}")
        exact = self.one_process(row, "float32")
        return {what: self._distance(row, what, ranks[what], exact[what]) for what in exact}

    def one_process(self, row: Row, dtype: str) -> Latents:
        return self._one_process(Row(row.variant, row.mode, row.sound, 1, ""), dtype)

    @cache  # noqa: B019, as long as the module's fixture
    def _one_process(self, row: Row, dtype: str) -> Latents:
        return self.alone.latents(row, dtype)

    def _distance(self, row: Row, what: str, ranks: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
        assert ranks.shape == exact.shape
        other = self.one_process(row, "float64" if row.dtype == "float32" else "bfloat16")[what]
        assert not torch.equal(other.float(), exact), "nothing was computed that rounding could show in"
        if row.dtype == "float32":
            return relative(ranks, exact), max(LIMIT, 4 * relative(exact, other))
        return relative(ranks, exact), 2 * relative(other, exact)

    __hash__ = object.__hash__


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2 distance from `other`."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def compare(folder: Path, rows: Sequence[Row], *, steps: int, layers: int) -> Comparison:
    """Generate `rows` on ranks."""
    write_media(folder)
    for variant in VARIANTS:
        write_checkpoint(folder, variant, layers)
    size = {"steps": steps, "layers": layers}
    listed = [row.as_json() for row in rows]
    told = run_cases(__name__, RANKS, folder, step_timeout=900, rows=listed, size=size)
    return Comparison(folder, rows, told, Generations(folder, **size))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(tmp_path_factory.mktemp("sample"), [*SAMPLE, *PLANTED], steps=4, layers=2)


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.label)
def test_ranks_generate_what_one_process_does(sample: Comparison, row: Row) -> None:
    assert sample.ranks_agree(row)
    for what, (distance, allowed) in sample.distances(row).items():
        assert distance <= allowed, what


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: row.fault)
def test_a_planted_fault_is_far_outside_what_rounding_explains(sample: Comparison, row: Row) -> None:
    distance, allowed = sample.distances(row)["vision"]
    assert distance > 100 * allowed
    assert sample.ranks_agree(row) == (row.fault != "skip_a_reduce")


def test_a_forward_with_every_kind_of_token_is_that_of_one_process(sample: Comparison) -> None:
    sample.told.check("one_forward_with_sound_and_actions")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(tmp_path_factory.mktemp("soak"), all_rows(), steps=8, layers=4)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_mode_of_every_variant(
    everything: Comparison, record_property: Any, variant: str, tp: int, dtype: str
) -> None:
    rows = [row for row in all_rows() if (row.variant, row.tp, row.dtype) == (variant, tp, dtype)]
    apart = [figures for row in rows for figures in everything.distances(row).values()]
    record_property("generations", len(rows))
    record_property("distance", max(distance for distance, _ in apart))
    record_property("of_what_is_allowed", max(distance / allowed for distance, allowed in apart))
    assert all(everything.ranks_agree(row) for row in rows)
    assert all(distance <= allowed for distance, allowed in apart)
