"""The VAE's decode over all ranks: every rank decodes a strip of the picture, as if it had the whole.

In the decoder of `AutoencoderKLWan` (diffusers 0.42.1) two things look beyond a pixel: the spatial
convolutions, which need a border of the neighbours' pixels, and the attention of the middle block, which
needs the whole (small) plane. Both get it, so the result is that of the undivided decode, up to rounding.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from armillary.parallel.collectives import Group
from armillary.plan.ranges import Range, Segment, cut

WORTHWHILE_PIXELS = 256 * 256 * 9
"""Pixels x frames from which on a decode is divided; below it the exchanges cost more than they save."""


def divides_decode(group: Group, width: int, height: int, frames: int, spatial_factor: int) -> bool:
    """Whether the decode of such a result (in pixels) is divided over `group`."""
    strips = max(width, height) // spatial_factor
    return group.size > 1 and strips >= group.size and width * height * frames >= WORTHWHILE_PIXELS


@dataclass(frozen=True)
class Strips:
    """How the columns (dim -1) or rows (dim -2) of a latent plane lie on the ranks of a group."""

    group: Group
    dim: int
    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, group: Group, latents: torch.Tensor) -> Strips:
        """Cut the longer side of latents [..., height, width], as evenly as it goes."""
        dim = -1 if latents.shape[-1] >= latents.shape[-2] else -2
        shard = cut(0, [Segment(units=latents.shape[dim], uneven=True)], group.size)
        return cls(group, dim, tuple(shard.ranges(rank)[0] for rank in range(group.size)))

    def sizes(self, scale: int = 1) -> list[int]:
        """Columns of every rank, at a resolution `scale` times that of the latents."""
        return [(stop - start) * scale for start, stop in self.ranges]

    def own(self, whole: torch.Tensor, scale: int = 1) -> torch.Tensor:
        """This rank's strip of a whole plane."""
        start, stop = self.ranges[self.group.rank]
        return whole.narrow(self.dim, start * scale, (stop - start) * scale)

    def whole(self, strip: torch.Tensor, scale: int = 1) -> torch.Tensor:
        """The whole plane, on every rank."""
        return self.group.all_gather(strip, self.sizes(scale), strip.dim() + self.dim)

    def with_borders(self, strip: torch.Tensor, width: int) -> torch.Tensor:
        """The strip with `width` columns of each neighbour beside it, zeros where the picture ends."""
        rank, last = self.group.rank, self.group.size - 1
        size = strip.shape[self.dim]
        near, far = strip.narrow(self.dim, 0, width), strip.narrow(self.dim, size - width, width)
        nothing = strip.narrow(self.dim, 0, 0)
        pieces = [nothing] * self.group.size
        if rank > 0:
            pieces[rank - 1] = near
        if rank < last:
            pieces[rank + 1] = far
        received = self.group.exchange(pieces, [piece.shape for piece in pieces])
        outside = torch.zeros_like(near)
        before = received[rank - 1] if rank > 0 else outside
        after = received[rank + 1] if rank < last else outside
        return torch.cat([before, strip, after], dim=self.dim)


@torch.no_grad()
def decoded_frames(vae: Any, z: torch.Tensor, group: Group) -> Generator[torch.Tensor, None, None]:
    """What `vae.decode(z)` gives [1, 3, frames, height, width], the frames of one latent frame after another.

    All ranks of `group` take part, each with the whole latents, and get the whole frames: every one must ask
    for them to the end. Tiling, where it is switched on, and planes too small for strips stay what they are.
    """
    if vae.use_tiling:
        yield vae.decode(z).sample
        return
    strips = Strips.of(group, z) if 1 < group.size <= max(z.shape[-2:]) else None
    changed = _look_beyond(vae.decoder, strips) if strips else ()
    try:
        vae.clear_cache()
        latents = vae.post_quant_conv(strips.own(z) if strips else z)
        for number in range(z.shape[2]):
            # as the class's own loop: its convolutions keep what they have seen of earlier frames
            vae._conv_idx = [0]
            frames = vae.decoder(
                latents[:, :, number : number + 1],
                feat_cache=vae._feat_map,
                feat_idx=vae._conv_idx,
                first_chunk=number == 0,
            )
            frames = _unpatched(vae, frames).clamp(-1, 1)
            if strips:
                scale = frames.shape[strips.dim] // strips.sizes()[group.rank]
                frames = strips.whole(frames, scale)
            yield frames
    finally:
        for module in changed:
            del module.forward
        vae.clear_cache()


def _unpatched(vae: Any, frames: torch.Tensor) -> torch.Tensor:
    if vae.config.patch_size is None:
        return frames
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    picture: torch.Tensor = unpatchify(frames, patch_size=vae.config.patch_size)
    return picture


def _look_beyond(decoder: nn.Module, strips: Strips) -> Sequence[nn.Module]:
    """Give the modules that look beyond their pixel a forward that asks the neighbours."""
    changed = []
    for module in decoder.modules():
        kind = type(module).__name__
        if kind == "WanAttentionBlock":
            forward: Any = partial(_attend_whole, module.forward, strips)
        elif kind == "WanCausalConv3d" and max(module.kernel_size[1:]) > 1:  # type: ignore[index]
            forward = partial(_causal_conv, module, strips)
        elif isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1:
            forward = partial(_conv, module, strips)
        else:
            continue
        vars(module)["forward"] = forward
        changed.append(module)
    return changed


def _attend_whole(stock: Any, strips: Strips, x: torch.Tensor) -> torch.Tensor:
    scale = x.shape[strips.dim] // strips.sizes()[strips.group.rank]
    return strips.own(stock(strips.whole(x, scale)), scale)


def _causal_conv(
    conv: Any, strips: Strips, x: torch.Tensor, cache_x: torch.Tensor | None = None
) -> torch.Tensor:
    """The causal convolution: frames cached or padded in front, the neighbours' border beside."""
    padding = list(conv._padding)  # left, right, top, bottom, frames in front, frames behind
    if cache_x is not None and padding[4] > 0:
        x = torch.cat([cache_x.to(x.device), x], dim=2)
        padding[4] -= cache_x.shape[2]
    side = 2 * (-1 - strips.dim)
    x = strips.with_borders(x, padding[side])
    padding[side] = padding[side + 1] = 0
    return nn.Conv3d.forward(conv, F.pad(x, padding))


def _conv(conv: nn.Conv2d, strips: Strips, x: torch.Tensor) -> torch.Tensor:
    """A padded convolution of stride 1, its picture with the neighbours' border."""
    above, beside = (int(size) for size in conv.padding)
    x = strips.with_borders(x, beside if strips.dim == -1 else above)
    padding = (above, 0) if strips.dim == -1 else (0, beside)
    return F.conv2d(x, conv.weight, conv.bias, conv.stride, padding, conv.dilation, conv.groups)
