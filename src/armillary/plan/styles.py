"""The styles: how one module's parameters are split over the tp axis.

A style is pure data. Which dimension it cuts follows from the parameter's name:

    style            weight            bias
    Colwise          dim 0 (outputs)   dim 0
    Rowwise          dim 1 (inputs)    replicated, added once after the reduce
    PackedColwise    as Colwise, each fused block cut on its own
    PackedRowwise    as Rowwise, each fused block cut on its own
    VocabSplit       dim 0 (embedding rows)
    NormSplit        dim 0 (features)  dim 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from armillary.errors import PlanError, Problem, list_choices


@dataclass(frozen=True)
class Colwise:
    """Split the outputs of a linear layer. With `gather` the output is made whole again (any width)."""

    gather: bool = False
    kinds: ClassVar[tuple[str, ...]] = ("linear",)
    dims: ClassVar[Mapping[str, int]] = {"weight": 0, "bias": 0}


@dataclass(frozen=True)
class Rowwise:
    """Split the inputs of a linear layer; its output is summed over the ranks, its bias added once."""

    kinds: ClassVar[tuple[str, ...]] = ("linear",)
    dims: ClassVar[Mapping[str, int | None]] = {"weight": 1, "bias": None}


@dataclass(frozen=True)
class PackedColwise:
    """`Colwise` for a fused layer: `blocks` are the proportions of its fused outputs, e.g. [1, 1, 1].

    `blocks=None` takes them from the layer (`_tp_packed_col_blocks`, as diffusers' models declare it).
    """

    blocks: tuple[int, ...] | None = None
    kinds: ClassVar[tuple[str, ...]] = ("linear",)
    dims: ClassVar[Mapping[str, int]] = {"weight": 0, "bias": 0}

    def __init__(self, blocks: Sequence[int] | None = None) -> None:
        object.__setattr__(self, "blocks", _checked_blocks(blocks))


@dataclass(frozen=True)
class PackedRowwise:
    """`Rowwise` for a layer whose input is a concatenation; `blocks` are the proportions of its parts."""

    blocks: tuple[int, ...] | None = None
    kinds: ClassVar[tuple[str, ...]] = ("linear",)
    dims: ClassVar[Mapping[str, int | None]] = {"weight": 1, "bias": None}

    def __init__(self, blocks: Sequence[int] | None = None) -> None:
        object.__setattr__(self, "blocks", _checked_blocks(blocks))


@dataclass(frozen=True)
class VocabSplit:
    """Split the rows of an embedding; each rank looks up its own rows and the results are summed."""

    kinds: ClassVar[tuple[str, ...]] = ("embedding",)
    dims: ClassVar[Mapping[str, int]] = {"weight": 0}


@dataclass(frozen=True)
class NormSplit:
    """Split a norm over features that are split themselves (a query norm across all heads).

    Its input and output are the rank's own features; the mean over all of them is taken over the ranks.
    """

    kinds: ClassVar[tuple[str, ...]] = ("norm",)
    dims: ClassVar[Mapping[str, int]] = {"weight": 0, "bias": 0}


Style: TypeAlias = Colwise | Rowwise | PackedColwise | PackedRowwise | VocabSplit | NormSplit


@dataclass(frozen=True)
class Optional:
    """An entry whose module a checkpoint may lack, or whose argument a call may lack in a context plan.

    `entry` may take any form that `parse_style` takes, or that of a context entry, input or output.
    """

    entry: object

    def __init__(self, entry: object) -> None:
        # a context entry may hold optional inputs, so each of the two modules needs the other
        from armillary.plan.context import is_context, parse_inside

        if isinstance(entry, Optional) or (isinstance(entry, Mapping) and set(entry) == {"optional"}):
            raise PlanError(
                Problem("optional-once", "Optional(Optional(...)) says the same thing twice", "write it once")
            )
        object.__setattr__(self, "entry", parse_inside(entry) if is_context(entry) else parse_style(entry))

    @property
    def style(self) -> Style:
        """The style inside, of an entry of a tensor plan."""
        assert isinstance(self.entry, Style), f"{self} is part of a context plan"
        return self.entry


Entry: TypeAlias = Style | Optional

_PACKED: Mapping[str, type[PackedColwise | PackedRowwise]] = {
    "packed_colwise": PackedColwise,
    "packed_rowwise": PackedRowwise,
}
_BY_NAME: Mapping[str, type[Style]] = {
    "colwise": Colwise,
    "rowwise": Rowwise,
    **_PACKED,
    "vocab_split": VocabSplit,
    "norm_split": NormSplit,
}
_NAMES = {style: name for name, style in _BY_NAME.items()}
# diffusers' own marker objects, recognised by name so that no import of diffusers is needed
_DIFFUSERS: Mapping[str, type[PackedColwise | PackedRowwise]] = {
    "PackedColwiseParallel": PackedColwise,
    "PackedRowwiseParallel": PackedRowwise,
}


def _checked_blocks(blocks: Sequence[int] | None) -> tuple[int, ...] | None:
    if blocks is None:
        return None
    listed = isinstance(blocks, Sequence) and len(blocks) > 0
    if not listed or any(not isinstance(b, int) or isinstance(b, bool) or b < 1 for b in blocks):
        raise PlanError(
            Problem("packed-blocks", f"blocks={blocks!r} are not proportions", "list whole numbers from 1 up")
        )
    return tuple(blocks)


def style_name(style: Style) -> str:
    """The name under which `style` stands in a plan file: "colwise", "packed_rowwise", ..."""
    return _NAMES[type(style)]


def parse_style(value: object) -> Style:
    """A style from a style object, its name, its JSON form or diffusers' packed marker.

    Raises `PlanError` for anything else, naming the known styles.
    """
    if isinstance(value, Colwise | Rowwise | PackedColwise | PackedRowwise | VocabSplit | NormSplit):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]()
    if marker := _DIFFUSERS.get(type(value).__name__):
        return marker(getattr(value, "blocks", None))
    if isinstance(value, Mapping) and len(value) == 1:
        name, argument = next(iter(value.items()))
        if packed := _PACKED.get(name):
            return packed(argument)
        if name == "colwise" and argument == {"gather": True}:
            return Colwise(gather=True)
    raise PlanError(
        Problem("unknown-style", f"{value!r} is not a style", f"use one of {list_choices(list(_BY_NAME))}")
    )


def parse_entry(value: object) -> Entry:
    """An entry of a plan: a style in any form `parse_style` takes, or one wrapped as optional."""
    if isinstance(value, Optional):
        return value
    if isinstance(value, Mapping) and set(value) == {"optional"}:
        return Optional(value["optional"])
    return parse_style(value)


def entry_to_json(entry: Entry) -> Any:
    """The JSON form of an entry; `parse_entry` reads it back to an equal one."""
    if isinstance(entry, Optional):
        return {"optional": entry_to_json(entry.style)}
    if isinstance(entry, PackedColwise | PackedRowwise) and entry.blocks is not None:
        return {style_name(entry): list(entry.blocks)}
    if isinstance(entry, Colwise) and entry.gather:
        return {"colwise": {"gather": True}}
    return style_name(entry)
