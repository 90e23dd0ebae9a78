"""`VerifyReport`: what a proof found, as data, as JSON and as lines for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from armillary.layout import Layout
from armillary.proof.law import Divergence

_WIDEST = 8
"""Blocks that are shown, the worst ones of a large model."""


@dataclass(frozen=True, kw_only=True)
class OutputDistance:
    """How far one output of the ranks is from the truth."""

    relative_l2: float
    max_abs: float
    tolerance: float
    """Of the relative L2 distance."""
    rounding: float | None
    """How far one process is from itself in another dtype; None where that was not computed."""

    @property
    def ok(self) -> bool:
        """Whether law 5 holds; never where a number is none."""
        return self.relative_l2 <= self.tolerance < math.inf

    @property
    def fault(self) -> str:
        """Why law 5 does not hold, in a few words; empty where it does."""
        if self.ok:
            return ""
        if not math.isfinite(self.tolerance):
            return "no tolerance: one process alone computes no finite numbers"
        return "too far" if math.isfinite(self.relative_l2) else "not finite on the ranks"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What `armillary.verify` found; `ok` only if everything is as in one process."""

    layout: Layout
    ranks_equal: bool
    """Whether all ranks have the same outputs, bit for bit."""
    outputs: Mapping[str, OutputDistance]
    divergence: Divergence | None
    """The first layer that differs by more than rounding explains; None where the proof holds."""
    tolerance_rule: str
    model_class: str
    dtype: str
    layers: int | None
    """Blocks that the checkpoint was cut to; None: all."""
    request: Mapping[str, Any] | None
    """What was generated; None for one forward."""
    differing: Mapping[str, Mapping[str, Any]]
    """Parameters and buffers unlike those of one process: name -> what differs, on which ranks."""
    replicated_dtypes: Mapping[str, int]
    """Of the parameters and buffers that every rank has in full: dtype -> how many."""
    blocks: Mapping[str, float]
    """The largest relative L2 distance inside every block."""
    blocks_rounding: Mapping[str, float]
    """What rounding does there in one process."""
    compared: int
    """Activations that were compared."""
    split_fraction: float
    """Share of the bytes of linear layers in blocks that is split; of 0 where tp is 1."""

    @property
    def ok(self) -> bool:
        """Whether the layout computes what one process computes."""
        equal = self.ranks_equal and not self.differing and self.divergence is None
        return equal and all(one.ok for one in self.outputs.values())

    @property
    def relative_l2(self) -> float:
        """The worst of the outputs."""
        return max(one.relative_l2 for one in self.outputs.values())

    @property
    def max_abs(self) -> float:
        """The worst of the outputs."""
        return max(one.max_abs for one in self.outputs.values())

    @property
    def tolerance(self) -> float:
        """The highest of the outputs' own tolerances: where the proof holds, no distance is above it."""
        return max(one.tolerance for one in self.outputs.values())

    @property
    def first_divergence(self) -> str | None:
        """The path of the module where the ranks first differ by more than rounding explains."""
        return self.divergence.module if self.divergence else None

    def to_json(self) -> dict[str, Any]:
        """As `armillary verify --json` prints it; a number that is none is null."""
        return {
            "ok": self.ok,
            "layout": self.layout.degrees,
            "relative_l2": finite(self.relative_l2),
            "max_abs": finite(self.max_abs),
            "ranks_equal": self.ranks_equal,
            "first_divergence": self.first_divergence,
            "outputs": {
                name: {key: finite(value) for key, value in asdict(one).items()}
                for name, one in self.outputs.items()
            },
            "tolerance": finite(self.tolerance),
            "tolerance_rule": self.tolerance_rule,
            "class": self.model_class,
            "dtype": self.dtype,
            "layers": self.layers,
            "request": self.request,
            "divergence": None if self.divergence is None else _all_finite(asdict(self.divergence)),
            "differing": self.differing,
            "replicated_dtypes": self.replicated_dtypes,
            "blocks": _all_finite(self.blocks),
            "blocks_rounding": _all_finite(self.blocks_rounding),
            "compared": self.compared,
            "split_fraction": self.split_fraction,
        }

    def lines(self) -> Iterator[str]:
        """What `armillary verify` prints."""
        cut = f", cut to --layers {self.layers}" if self.layers else ""
        yield f"{self.model_class}  {self.layout}  {self.dtype}{cut}: {_what(self.request)}"
        yield "held against diffusers' own model, whole, in one process, in float32"
        yield ""
        width = max(len("output"), *map(len, self.outputs))
        yield f"{'output':{width}}  relative L2     max abs   tolerance"
        for name, one in self.outputs.items():
            figures = f"{one.relative_l2:11.2e} {one.max_abs:11.2e} {one.tolerance:11.2e}"
            yield f"{name:{width}}  {figures}  {one.fault}".rstrip()
        yield f"tolerance: {self.tolerance_rule}"
        yield ""
        yield f"ranks        {'equal bit for bit' if self.ranks_equal else 'differ in their outputs'}"
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in self.replicated_dtypes.items())
        yield f"replicated   parameters and buffers: {dtypes or 'none'}"
        for name, what in self.differing.items():
            yield f"weights      {name} differs in {what['what']} on rank {_numbers(what['ranks'])}"
        if not self.differing:
            yield "weights      every rank holds the bits that it should"
        for block, distance in self._shown_blocks():
            rounding = self.blocks_rounding.get(block)
            beside = "" if rounding is None else f"  (rounding in one process {rounding:.1e})"
            yield f"block        {block}: {distance:.1e}{beside}"
        yield from self._verdict()

    def _shown_blocks(self) -> list[tuple[str, float]]:
        worst = sorted(self.blocks, key=lambda block: -self.blocks[block])[:_WIDEST]
        return [(block, distance) for block, distance in self.blocks.items() if block in worst]

    def _verdict(self) -> Iterator[str]:
        yield ""
        if self.ok:
            yield "ok: the layout computes what one process computes"
            return
        if found := self.divergence:
            yield f"first divergence: {found.module}"
            if found.relative_l2:
                yield (
                    f"  {found.tensor}, call {found.call} of the model: {found.relative_l2:.1e}, "
                    f"where rounding explains {found.allowed:.1e}"
                )
        yield "not ok: the layout computes something else"


def replicated_dtypes(dtypes: Mapping[str, str]) -> dict[str, int]:
    """How many there are of each dtype, the most frequent first."""
    return dict(Counter(dtypes.values()).most_common())


def _what(request: Mapping[str, Any] | None) -> str:
    if request is None:
        return "one forward"
    size = f"{request['width']}x{request['height']}x{request['num_frames']}"
    steps = f"{request['num_inference_steps']} steps, guidance {request['guidance_scale']:g}"
    return f"{request['mode']} {size}, {steps}, seed {request['seed']}"


def _numbers(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def finite(value: float | None) -> float | None:
    """A number as JSON has it; None for one that is none."""
    return value if value is not None and math.isfinite(value) else None


def _all_finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: finite(value) if isinstance(value, float) else value for key, value in values.items()}
