"""What leaves the device is never read at the load, comes from where it lives, and frees memory."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from armillary.errors import CheckpointError, LayoutError
from armillary.models.cosmos3.pathways import UNUSED_BY_GENERATION
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.load import load
from armillary.parallel.placement import Sources
from armillary.parallel.residency import HostSource
from armillary.parallel.tensor import sharding_of
from armillary.residency import Residency
from packed_forward import Packed
from rank_cases import World, run_cases

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
# a layer has 24 MB in float32, half of them the understanding pathway's
LARGE = TinyOptions(layers=8, hidden=512, head_dim=64, intermediate=1536, sound=False, action=False)
HOMES = {
    "device": Residency(),
    "evict": Residency(evict="disk"),
    "offload": Residency(offload="disk", resident_layers=1),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny", TinyOptions(layers=3))


def moved(folder: Path, residency: Residency) -> Any:
    return load(folder, subfolder="transformer", residency=residency)


def test_a_checkpoint_cut_after_the_load_is_a_checkpoint_error_of_the_reading_thread(folder: Path) -> None:
    model = moved(folder, Residency(offload="disk"))
    weights = folder / WEIGHTS
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="cut after its header was read"):
        Packed().run(model)


def test_a_checkpoint_that_is_moved_after_the_load_is_still_read(folder: Path) -> None:
    model = moved(folder, Residency(offload="disk", evict="disk"))
    expected = Packed().run(moved(folder, Residency()))
    folder.rename(folder.parent / "elsewhere")
    assert torch.equal(Packed().run(model)[0], expected[0])


def test_a_host_copy_needs_the_files_no_more(folder: Path) -> None:
    model = moved(folder, Residency(offload="host"))
    expected = Packed().run(moved(folder, Residency()))
    (folder / WEIGHTS).write_bytes(b"")
    assert torch.equal(Packed().run(model)[0], expected[0])


def test_a_table_of_which_prompts_read_rows_is_not_copied_to_host_memory(folder: Path) -> None:
    model = moved(folder, Residency(evict="host"))
    assert torch.equal(Packed().run(model)[0], Packed().run(moved(folder, Residency()))[0])
    sharding = sharding_of(model)
    assert sharding is not None
    assert sharding.weights is not None
    source = sharding.weights.source
    assert isinstance(source, Sources)
    files = {name for name in sharding.away if not isinstance(source.of(name), HostSource)}
    assert files == {"embed_tokens.weight"}


def test_buffers_stay_where_they_are(folder: Path) -> None:
    stock, away = moved(folder, Residency()), moved(folder, Residency(offload="disk", evict="disk"))
    for (name, buffer), (_, other) in zip(stock.named_buffers(), away.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name


def test_names_shapes_and_dtypes_are_those_of_the_whole_model(folder: Path) -> None:
    stock, away = moved(folder, Residency()), moved(folder, Residency(offload="disk", evict="disk"))
    facts = [{n: (p.shape, p.dtype) for n, p in model.named_parameters()} for model in (stock, away)]
    assert facts[0] == facts[1]


def test_a_model_without_blocks_of_a_known_family_says_so(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    with pytest.raises(
        LayoutError, match=r"AutoencoderKLWan has no blocks that could live elsewhere; use Resid"
    ):
        load(folder, subfolder="vae", residency=Residency(offload="disk"))


def on_ranks_private_memory_while_denoising(world: World) -> int:
    """RssAnon of this process after two steps, above what it was before the load. Every rank is a process
    alone with a residency of its own, so that none finds memory that another has left behind."""
    Packed().run(load(world.folder / "tiny", subfolder="transformer", progress=False))
    before = private_bytes()
    model = load(
        world.folder / "large",
        subfolder="transformer",
        residency=list(HOMES.values())[world.rank],
        leave_out=UNUSED_BY_GENERATION,
        prefill=True,
        progress=False,
    )
    for timestep in (900.0, 500.0):
        Packed(timestep=timestep).run(model)
    return private_bytes() - before


def private_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is read from /proc")
def test_private_memory_is_lower_by_what_lives_elsewhere(tmp_path: Path, record_property: Any) -> None:
    write_tiny(tmp_path / "large", LARGE)
    write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    told = run_cases(__name__, len(HOMES), tmp_path, step_timeout=600)
    held = dict(zip(HOMES, told.values("private_memory_while_denoising"), strict=True))
    record_property("bytes", held)
    assert held["evict"] < 0.6 * held["device"]
    assert held["offload"] < 0.4 * held["device"]
