"""Law 5 for every axis and residency: a whole generation on ranks is the one of one process.

`make test` runs a sample in which every two degrees, residencies and variants meet; `make soak` runs every
legal layout of up to 4 ranks with every residency. 3, 5 and 6 ranks are always among them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from generations import Generations, Latents, Recorded, Row, pairwise, request_of, write_checkpoint

from armillary.engine.pipeline import run_pipeline
from armillary.errors import LayoutError
from armillary.layout import Layout
from armillary.models.cosmos3 import UNUSED_BY_GENERATION
from armillary.parallel.load import load
from armillary.residency import Residency
from rank_cases import Told, World, run_cases

RANKS = 6
LIMIT = 1e-5
"""Relative L2 that float32 may always be apart (law 5)."""
SIZE = {"steps": 4, "layers": 2}
VARIANTS = ("silu-bias", "relu2")
HOMES = {
    "device": Residency(),
    "host": Residency(offload="host"),
    "disk": Residency(offload="disk", resident_layers=1),
    "evict": Residency(evict="disk"),
}

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Cell:
    """One generation over a layout, its weights somewhere."""

    variant: str
    home: str
    layout: Layout

    @property
    def label(self) -> str:
        return f"{self.variant}-{self.home}-{self.layout}".replace(" ", "")

    def as_json(self) -> list[Any]:
        return [self.variant, self.home, *self.layout.degrees.values()]

    @classmethod
    def of_json(cls, values: Sequence[Any]) -> "Cell":
        variant, home, *degrees = values
        return cls(variant, home, Layout(**dict(zip(Layout.AXES, degrees, strict=True))))

    @property
    def row(self) -> Row:
        """What is asked for: guidance always, sound where the variant has it."""
        return Row(self.variant, "text-to-video", not self.variant.startswith("relu2"), 1, "float32")


def layouts(world_size: int) -> list[Layout]:
    """Every layout of up to `world_size` ranks that the tiny checkpoint's heads allow."""
    degrees = range(1, world_size + 1)
    found = []
    for cfg, ring, gather, ulysses, tp in itertools.product((1, 2), degrees, degrees, (1, 2, 4), (1, 2, 4)):
        try:
            layout = Layout(cfg=cfg, ring=ring, gather=gather, ulysses=ulysses, tp=tp)
        except LayoutError:
            continue  # ring with gather
        if layout.world_size <= world_size:
            found.append(layout)
    return found


EVERYTHING = [Cell(*choice) for choice in itertools.product(VARIANTS, HOMES, layouts(4))]
ODD = [
    Cell("silu-bias", "evict", Layout(gather=3)),
    Cell("relu2", "device", Layout(gather=5)),
    Cell("silu-bias", "disk", Layout(cfg=2, gather=3)),
]
SAMPLE = [*pairwise(EVERYTHING), *ODD]


class Placed(Generations):
    """Generations whose weights may live elsewhere, with the prompt computed once."""

    def placed(self, cell: Cell, mesh: Any) -> Latents:
        checkpoint = write_checkpoint(self.folder, cell.variant, self.layers)
        transformer = load(
            checkpoint,
            subfolder="transformer",
            layout=mesh.layout,
            mesh=mesh,
            residency=HOMES[cell.home],
            prefill=True,
            leave_out=UNUSED_BY_GENERATION,
            progress=False,
        )
        request = request_of(cell.row, checkpoint, self.folder, self.steps)
        pipeline = Recorded(self._pipeline(request, "float32", transformer))
        run_pipeline(pipeline, request, mesh, on_step=lambda i: None)
        sound = {"sound": pipeline.state.get("sound_latents")} if cell.row.sound else {}
        return {"vision": pipeline.state.get("latents"), **sound}


def on_ranks_generations(world: World) -> list[bool | None]:
    """Every cell on the first ranks; whether all of them ended with the same bits. The first leaves the
    latents."""
    cells = [Cell.of_json(values) for values in world.arguments["cells"]]
    meshes = {layout: world.mesh(layout) for layout in dict.fromkeys(cell.layout for cell in cells)}
    generations = Placed(world.folder, **SIZE)
    equal: list[bool | None] = []
    for number, cell in enumerate(cells):
        mesh = meshes[cell.layout]
        if mesh is None or world.rank >= cell.layout.world_size:  # a layout of one rank is everybody's
            equal.append(None)
            continue
        latents = generations.placed(cell, mesh)
        bits = {what: tensor.numpy().tobytes() for what, tensor in latents.items()}
        equal.append(all(other == bits for other in mesh.everyone.share(bits)))
        if mesh.is_first:
            torch.save(latents, world.folder / f"cell-{number}")
    return equal


@dataclass
class Matrix:
    """What the ranks have generated, beside one process."""

    folder: Path
    cells: Sequence[Cell]
    told: Told
    alone: Generations

    def distance(self, cell: Cell) -> float:
        """Relative L2 of what is furthest away, in units of what law 5 allows."""
        number = self.cells.index(cell)
        said = [rank[number] for rank in self.told.values("generations")]
        assert said == [True] * cell.layout.world_size + [None] * (RANKS - cell.layout.world_size)
        ranks: Latents = torch.load(self.folder / f"cell-{number}")
        exact, finer = (self.reference(cell.variant, dtype) for dtype in ("float32", "float64"))
        assert ranks.keys() == exact.keys()
        return max(
            relative(ranks[what], exact[what]) / max(LIMIT, 4 * relative(exact[what], finer[what]))
            for what in exact
        )

    @cache  # noqa: B019, as long as the module's fixture
    def reference(self, variant: str, dtype: str) -> Latents:
        return self.alone.latents(Cell(variant, "device", Layout()).row, dtype)

    __hash__ = object.__hash__


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one.double() - other.double()).norm() / other.double().norm())


def matrix(folder: Path, cells: Sequence[Cell]) -> Matrix:
    for variant in ("silu", *VARIANTS):  # the pipelines are built around "silu", which has every part
        write_checkpoint(folder, variant, SIZE["layers"])
    told = run_cases(__name__, RANKS, folder, step_timeout=600, cells=[cell.as_json() for cell in cells])
    return Matrix(folder, cells, told, Generations(folder, **SIZE))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return matrix(tmp_path_factory.mktemp("axes"), SAMPLE)


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.label)
def test_a_layout_generates_what_one_process_does(sample: Matrix, record_property: Any, cell: Cell) -> None:
    distance = sample.distance(cell)
    record_property("of_what_is_allowed", distance)
    assert distance <= 1


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return matrix(tmp_path_factory.mktemp("matrix"), EVERYTHING)


@pytest.mark.soak
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("layout", layouts(4), ids=lambda layout: str(layout).replace(" ", ""))
def test_every_layout_of_up_to_four_ranks(
    everything: Matrix, record_property: Any, layout: Layout, home: str
) -> None:
    distances = [everything.distance(Cell(variant, home, layout)) for variant in VARIANTS]
    record_property("of_what_is_allowed", max(distances))
    assert max(distances) <= 1
