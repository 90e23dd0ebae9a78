"""The VAE's decode over ranks is the undivided one: no seams, whatever the shape; tiling stays what it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from hypothesis import given, strategies as st

from armillary.layout import Layout
from armillary.models.cosmos3.tiny import TinyOptions, write_tiny
from armillary.parallel.collectives import Group
from armillary.parallel.vae import Strips, decoded_frames, divides_decode
from rank_cases import Told, World, cases_of, run_cases

LIMIT = 1e-4
SHAPES = {
    "landscape": (3, 4, 8),
    "uneven": (2, 5, 7),
    "portrait": (2, 9, 5),
    "one-frame": (1, 4, 6),
    "one-column-each": (2, 2, 4),
    "square": (2, 6, 6),
}
"""Latent frames, height, width."""


def vae_of(world: World) -> Any:
    return AutoencoderKLWan.from_pretrained(world.folder / "tiny", subfolder="vae").eval()


def latents_of(vae: Any, shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.randn(1, vae.config.z_dim, *shape, generator=torch.Generator().manual_seed(sum(shape)))


def decoded(vae: Any, z: torch.Tensor, group: Group) -> torch.Tensor:
    return torch.cat([*decoded_frames(vae, z, group)], dim=2)


@torch.no_grad()
def test_frames_come_in_turn_and_have_the_bits_of_the_stock_decode(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny", TinyOptions(layers=1))
    vae = AutoencoderKLWan.from_pretrained(tmp_path / "tiny", subfolder="vae").eval()
    z = latents_of(vae, (3, 4, 6))
    chunks = [*decoded_frames(vae, z, Group("world"))]
    assert [chunk.shape[2] for chunk in chunks] == [1, 4, 4]
    assert torch.equal(torch.cat(chunks, dim=2), vae.decode(z).sample)


@torch.no_grad()
def on_ranks_strips_give_the_undivided_picture(world: World) -> dict[str, float]:
    """Relative L2 by shape, over 2, 3 and 4 ranks; every rank has the same bits."""
    apart: dict[str, float] = {}
    for layout in (Layout(gather=2), Layout(gather=3), Layout(gather=4)):
        mesh = world.mesh(layout)
        for name, shape in SHAPES.items() if mesh else ():
            whole, divided = vae_of(world), vae_of(world)
            z = latents_of(whole, shape)
            expected = whole.decode(z).sample
            picture = decoded(divided, z, mesh.everyone)
            assert picture.shape == expected.shape
            bits = picture.numpy().tobytes()
            assert all(other == bits for other in mesh.everyone.share(bits))
            distance = float((picture - expected).norm() / expected.norm())
            apart[name] = max(distance, apart.get(name, 0.0))
    assert max(apart.values()) <= LIMIT
    return apart


@torch.no_grad()
def on_ranks_every_rank_computes_its_strip_only(world: World) -> None:
    vae, mesh = vae_of(world), world.mesh(Layout(gather=4))
    widths: list[int] = []
    vae.decoder.norm_out.register_forward_hook(lambda _, args, out: widths.append(out.shape[-1]))
    z = latents_of(vae, (1, 4, 8))
    vae.decode(z)
    decoded(vae, z, mesh.everyone)
    assert widths[1] * 4 == widths[0]


@torch.no_grad()
def on_ranks_a_second_decode(world: World) -> None:
    """The decoder is as it was between decodes and afterwards, also where one ends early."""
    vae, mesh = vae_of(world), world.mesh(Layout(gather=4))
    z = latents_of(vae, (2, 4, 8))
    undivided = vae.decode(z).sample
    first = decoded(vae, z, mesh.everyone)
    early = decoded_frames(vae, z, mesh.everyone)
    next(early)
    early.close()
    assert not any("forward" in vars(module) for module in vae.decoder.modules())
    assert torch.equal(decoded(vae, z, mesh.everyone), first)
    assert torch.equal(vae.decode(z).sample, undivided)


@torch.no_grad()
def on_ranks_tiling_and_planes_too_small_for_strips_stay_as_they_are(world: World) -> None:
    mesh = world.mesh(Layout(gather=4))
    for shape, tiling in (((2, 2, 3), False), ((1, 6, 8), True)):
        whole, divided = vae_of(world), vae_of(world)
        for vae in (whole, divided) if tiling else ():
            vae.enable_tiling(64, 64, 48, 48)
        z = latents_of(whole, shape)
        assert torch.equal(decoded(divided, z, mesh.everyone), whole.decode(z).sample)


@torch.no_grad()
def on_ranks_a_strip_without_its_neighbours_border_would_be_seen(world: World) -> None:
    vae, mesh = vae_of(world), world.mesh(Layout(gather=4))
    z = latents_of(vae, (1, 4, 8))
    expected = vae.decode(z).sample
    strips = Strips.of(mesh.everyone, z)
    alone = vae.decode(strips.own(z)).sample
    picture = strips.whole(alone, scale=alone.shape[-1] // strips.sizes()[world.rank])
    assert float((picture - expected).norm() / expected.norm()) > 100 * LIMIT


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("vae")
    write_tiny(folder / "tiny", TinyOptions(layers=1))
    return run_cases(__name__, 4, folder, step_timeout=600)


@pytest.mark.parametrize("case", cases_of(__name__))
def test_on_4_ranks(told: Told, record_property: Any, case: str) -> None:
    record_property("distance", told.values(case)[0])


@given(height=st.integers(1, 40), width=st.integers(1, 40), ranks=st.integers(1, 9))
def test_strips_cover_the_longer_side_once(height: int, width: int, ranks: int) -> None:
    if max(height, width) < ranks:
        return
    strips = Strips.of(Group("world", ranks), torch.empty(1, 1, 1, height, width))
    assert sum(strips.sizes()) == max(height, width)
    assert min(strips.sizes()) >= 1
    assert (0, *(stop for _, stop in strips.ranges[:-1])) == tuple(start for start, _ in strips.ranges)


@pytest.mark.parametrize(
    ("ranks", "size", "frames", "divides"),
    [
        (1, (1280, 720), 189, False),
        (4, (1280, 720), 189, True),
        (4, (256, 256), 9, True),
        (4, (256, 256), 5, False),
        (8, (64, 64), 189, False),
        (8, (64, 2048), 9, True),
    ],
)
def test_a_decode_is_divided_above_a_size(
    ranks: int, size: tuple[int, int], frames: int, divides: bool
) -> None:
    assert divides_decode(Group("world", ranks), *size, frames, spatial_factor=16) is divides
