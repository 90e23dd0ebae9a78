"""The decoder of `AutoencoderKLWan` (diffusers 0.42.1) in numbers: operations, bytes and weights. No torch.

A test holds operations and weights against the real class on meta.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

DEFAULTS: Mapping[str, Any] = {
    "base_dim": 96,
    "decoder_base_dim": None,
    "z_dim": 16,
    "dim_mult": (1, 2, 4, 4),
    "num_res_blocks": 2,
    "temperal_downsample": (False, True, True),
    "is_residual": False,
    "in_channels": 3,
    "out_channels": 3,
    "patch_size": None,
}
"""What the class assumes where a config is silent."""

_CACHED_FRAMES = 2
"""That every causal convolution keeps of what came before."""

_UNPADDED, _PADDED = 4, 2
"""Tensors that are live at the widest place; counted at the allocator."""


@dataclass(frozen=True)
class Conv:
    """One convolution of the decoder while it decodes a whole clip."""

    inputs: int
    outputs: int
    kernel: int
    """Of all its dimensions together: 27 for 3 x 3 x 3."""
    frames: int
    height: int
    width: int
    causal: bool

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.inputs * self.outputs * self.kernel * self.frames * self.height * self.width


@dataclass(frozen=True)
class Decode:
    """What decoding one clip takes."""

    operations: int
    working_bytes: int
    """Live tensors of the decoder itself, beyond its weights and the clip."""
    clip_bytes: int
    """The clip that comes out."""


def decode_cost(config: Mapping[str, Any], latents: tuple[int, int, int], itemsize: int) -> Decode:
    """Operations and peak of decoding latents of (frames, height, width), frame by frame with caches.

    At work are every causal convolution's cached frames, and for the frames that one latent frame becomes at
    the widest place, four tensors and two that are padded by cached frames. The clip is there twice whenever
    new frames are joined to it.
    """
    c = {**DEFAULTS, **config}
    convs = list(_decoder(c, *latents))
    frames, height, width = latents
    middle = (c["decoder_base_dim"] or c["base_dim"]) * c["dim_mult"][-1]
    attention = 4 * frames * (height * width) ** 2 * middle
    last = convs[-1]
    kept = min(frames, _CACHED_FRAMES)
    cached = sum(k.inputs * k.height * k.width * kept for k in convs if k.causal)
    at_once = max(_live(k, (k.frames - 1) // max(frames - 1, 1) or 1) for k in convs if k.kernel > 1)
    clip = last.outputs * last.height * last.width * last.frames
    return Decode(
        operations=sum(conv.operations for conv in convs) + attention,
        working_bytes=(cached + at_once) * itemsize,
        clip_bytes=clip * itemsize,
    )


def _live(conv: Conv, together: int) -> int:
    """Elements around one convolution, whose input has `together` frames at once."""
    plane = max(conv.inputs, conv.outputs) * conv.height * conv.width
    return plane * (_UNPADDED * together + _PADDED * (together + _CACHED_FRAMES))


def _decoder(c: Mapping[str, Any], frames: int, height: int, width: int) -> Iterator[Conv]:
    """Every convolution, in order."""
    dim, multiples = c["decoder_base_dim"] or c["base_dim"], list(c["dim_mult"])
    dims = [dim * multiple for multiple in [multiples[-1], *reversed(multiples)]]
    grows_in_time = [*reversed(c["temperal_downsample"])]

    def conv(inputs: int, outputs: int, kernel: int) -> Conv:
        return Conv(inputs, outputs, kernel, frames, height, width, causal=kernel == 27)

    def residual(inputs: int, outputs: int) -> Iterator[Conv]:
        if inputs != outputs:
            yield conv(inputs, outputs, 1)
        yield conv(inputs, outputs, 27)
        yield conv(outputs, outputs, 27)

    yield conv(c["z_dim"], c["z_dim"], 1)
    yield conv(c["z_dim"], dims[0], 27)
    yield from residual(dims[0], dims[0])
    yield conv(dims[0], 3 * dims[0], 1)
    yield conv(dims[0], dims[0], 1)
    yield from residual(dims[0], dims[0])
    for level, (inputs, outputs) in enumerate(pairwise(dims)):
        if level and not c["is_residual"]:
            inputs //= 2
        for block in range(c["num_res_blocks"] + 1):
            yield from residual(outputs if block else inputs, outputs)
        if level == len(multiples) - 1:
            break
        if grows_in_time[level]:
            frames -= 1  # the first latent frame stays one picture
            yield conv(outputs, 2 * outputs, 3)
            frames = 2 * frames + 1
        height, width = 2 * height, 2 * width
        yield conv(outputs, outputs if c["is_residual"] else outputs // 2, 9)
    yield conv(dims[-1], c["out_channels"], 27)


def weight_count(config: Mapping[str, Any]) -> int:
    """Parameters of the convolutions and norms of encoder and decoder, both of which are loaded."""
    c = {**DEFAULTS, **config}
    decoder = sum(k.inputs * k.outputs * k.kernel + k.outputs for k in _decoder(c, 2, 1, 1))
    return decoder + _encoder_weights(c)


def _encoder_weights(c: Mapping[str, Any]) -> int:
    dims = [c["base_dim"] * multiple for multiple in [1, *c["dim_mult"]]]

    def conv(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel + outputs

    def residual(inputs: int, outputs: int) -> int:
        shortcut = conv(inputs, outputs, 1) if inputs != outputs else 0
        return shortcut + conv(inputs, outputs, 27) + conv(outputs, outputs, 27)

    total = conv(c["in_channels"], dims[0], 27)
    for level, (inputs, outputs) in enumerate(pairwise(dims)):
        total += residual(inputs, outputs) + (c["num_res_blocks"] - 1) * residual(outputs, outputs)
        if level < len(c["dim_mult"]) - 1:
            total += conv(outputs, outputs, 9)
            total += conv(outputs, outputs, 3) if c["temperal_downsample"][level] else 0
    middle, latent = dims[-1], 2 * c["z_dim"]
    total += 2 * residual(middle, middle) + conv(middle, 3 * middle, 1) + conv(middle, middle, 1)
    return total + conv(middle, latent, 27) + conv(latent, latent, 1)
