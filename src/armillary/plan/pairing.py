"""Pairing: what one layer splits, another must take up. Held on names, shapes and styles alone.

A column split leaves every rank with a part of the outputs, and only a row split can take parts. So the two
are paired where they meet: from a column-split layer upwards, the smallest enclosing module that also has a
row-split layer is their scope (`attn` for `to_q` and `to_out`; the block for `attn.to_q` and `proj_out` of a
single-stream block). What is left over at the block's edge is a fault. A key without a wildcard has no
block; its edge is the model.

    scope blocks.0.attn    columns to_q, to_k, to_v    rows to_out.0
    scope blocks.0.ff      columns net.0.proj          rows net.2

Within a scope widths must agree: each part of a row's inputs is as wide as some part of a column's outputs,
and no part of a column is wider than all of those, else the layer is fused and a plain style would mix its
parts up.

A plan says the exceptions itself:

- `Colwise(gather=True)`: the output is made whole again, so nobody need take it (`lm_head`, a modulation);
- `PackedColwise([1])`, `PackedRowwise([1])`: "one part, whatever its width or name suggests" (interleaved
  gates, grouped QKV order); of such a layer neither is judged, only that it has a partner;
- `VocabSplit()` joins its own output, and `NormSplit()` takes and leaves parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from armillary.errors import Problem, list_choices
from armillary.plan.explain import Match, key_of
from armillary.plan.segments import Cut
from armillary.plan.skeleton import Skeleton
from armillary.plan.styles import Colwise, PackedColwise, PackedRowwise, Rowwise, Style, style_name

_FUSED = re.compile(r"(?:^|_)(q?kv)(?:_|$)|gate_?(?:and_)?up|up_?gate")
"""Names of layers that hold several projections: to_qkv, qkv_proj, to_kv, gate_up_proj, ..."""
_ONE_PART = "or with [1] if it is one part after all"


@dataclass(frozen=True)
class Split:
    """A layer that leaves parts of its outputs to the ranks, or takes parts as its inputs."""

    path: str
    style: Style
    parts: tuple[int, ...]
    """Features of each fused part of the split dimension; empty where another fault hides them."""

    @property
    def is_column(self) -> bool:
        return isinstance(self.style, Colwise | PackedColwise)

    @property
    def said(self) -> bool:
        """Whether the plan says that the layer is one part, so that nothing is concluded from its width."""
        return isinstance(self.style, PackedColwise | PackedRowwise) and self.style.blocks == (1,)


@dataclass
class Scope:
    """A module, and the split layers inside it that met no partner further down."""

    path: str
    columns: list[Split] = field(default_factory=list)
    rows: list[Split] = field(default_factory=list)

    @property
    def met(self) -> bool:
        return bool(self.columns and self.rows)

    def names(self, splits: Iterable[Split]) -> str:
        """ "net.0.proj (64), gate (64)": layers as they are called inside the scope, with their widths."""
        return ", ".join(f"{s.path.removeprefix(f'{self.path}.')} ({_sum(s.parts)})" for s in splits)


def pairing_problems(
    skeleton: Skeleton, styles: Mapping[str, Style], cuts: Mapping[str, Cut], matches: Mapping[str, Match]
) -> Iterator[Problem]:
    """Everything about a plan that splits what nobody joins, or joins what nobody splits.

    Args:
        skeleton: names and shapes.
        styles: module path -> its style.
        cuts: parameter name -> how it is cut; a layer whose cut is not known is only asked for a partner.
        matches: plan key -> what it found.

    A fault that all blocks share is told once.
    """
    pairing = _Pairing(skeleton, styles)
    faults: dict[tuple[str, str], Problem] = {}
    # a list of layers, not of blocks, is no edge: its layers meet their partners outside
    edges = _edges(matches) - styles.keys()
    for scope in scopes_of(_splits(skeleton, styles, cuts), edges):
        for path, problem in pairing.faults(scope):
            faults.setdefault((problem.rule, pairing.key(path)), problem)
    yield from faults.values()


def scopes_of(splits: Iterable[Split], edges: Iterable[str]) -> Iterator[Scope]:
    """The scopes in which columns and rows meet, and what met nobody up to its edge."""
    edges = frozenset(edges)
    open_at: dict[int, dict[str, Scope]] = {}

    def scope_at(path: str) -> Scope:
        depth = len(path.split(".")) if path else 0
        return open_at.setdefault(depth, {}).setdefault(path, Scope(path))

    for split in splits:
        scope = scope_at(split.path)
        (scope.columns if split.is_column else scope.rows).append(split)
    # from the deepest up, so that a module is looked at when all of its children have been
    for depth in range(max(open_at, default=0), 0, -1):
        for scope in open_at.pop(depth, {}).values():
            if scope.met or scope.path in edges:
                yield scope
                continue
            above = scope_at(scope.path.rpartition(".")[0])
            above.columns += scope.columns
            above.rows += scope.rows
    yield from open_at.get(0, {}).values()


class _Pairing:
    """Finds the faults of scopes, and the names with which they are told."""

    def __init__(self, skeleton: Skeleton, styles: Mapping[str, Style]) -> None:
        self._skeleton = skeleton
        self._styles = styles

    def key(self, path: str) -> str:
        """The name of a module in all blocks."""
        return key_of(path, self._skeleton.tree)

    def faults(self, scope: Scope) -> Iterator[tuple[str, Problem]]:
        """(module path, problem) of everything that is wrong in a scope."""
        for column in scope.columns:
            if _fused_by_name(column) and column.parts:
                yield column.path, self._fused(column)
        if not all(split.parts for split in (*scope.columns, *scope.rows)):
            return  # a fault of another kind hides what the plan means here
        if scope.met:
            yield from self._widths(scope)
        else:
            yield from ((column.path, self._unjoined(column)) for column in scope.columns)
            yield from ((row.path, self._unfed(row)) for row in scope.rows)

    def _widths(self, scope: Scope) -> Iterator[tuple[str, Problem]]:
        """Columns and rows that met and do not agree on widths."""
        if any(split.said for split in (*scope.columns, *scope.rows)):
            return
        made = {part for column in scope.columns for part in column.parts}
        taken = {part for row in scope.rows for part in row.parts}
        fused = [c for c in scope.columns if max(c.parts) > max(taken) and not _fused_by_name(c)]
        for column in fused:
            yield column.path, self._too_wide(column, max(taken), scope)
        for row in scope.rows:
            if (strange := sorted({*row.parts} - made)) and not fused:
                yield row.path, self._strange(row, strange, scope)

    def _fused(self, column: Split) -> Problem:
        what = f"colwise splits {self.key(column.path)} as one, and its name says that it is several in one"
        return Problem("packed-plain", what, f"use packed_colwise with their proportions, {_ONE_PART}")

    def _too_wide(self, column: Split, widest: int, scope: Scope) -> Problem:
        name = style_name(column.style)
        count, rest = divmod(max(column.parts), widest)
        guess = [1] * count if len(column.parts) == 1 and not rest else "the proportions of its parts"
        return Problem(
            "packed-plain",
            f"{name} splits {self.key(column.path)} in parts of {_sum(column.parts)} outputs, wider than "
            f"what the row-split layers of {self._name(scope)} take: {scope.names(scope.rows)}",
            f"it is fused: use packed_colwise with {guess}, {_ONE_PART}",
        )

    def _strange(self, row: Split, strange: Sequence[int], scope: Scope) -> Problem:
        what = (
            f"{style_name(row.style)} splits {self.key(row.path)} in parts of {_sum(row.parts)} inputs, and "
            f"no column-split layer of {self._name(scope)} makes {list_choices(strange)}: "
            f"{scope.names(scope.columns)}"
        )
        if len(row.parts) == 1 and (pair := _sum_of_two(row.parts[0], scope.columns)):
            fix = f"it takes a concatenation: use packed_rowwise with {pair} in its order, {_ONE_PART}"
            return Problem("packed-plain", what, fix)
        makers = self._partners(row, 0)
        mend = f"give {list_choices(makers)} colwise too" if makers else "mend the blocks"
        return Problem("row-unfed", what, f"{mend}, or use packed_rowwise with [1] if widths mislead")

    def _unjoined(self, column: Split) -> Problem:
        takers = self._partners(column, 1)
        what = f"{self.key(column.path)} is split by columns, and no row split takes its parts"
        if takers:
            what += f": {list_choices(takers)} is whole"
        give = f"give {list_choices(takers) if takers else 'the layer that takes its output'} rowwise"
        return Problem(
            "column-unjoined", what, f"{give}, or use Colwise(gather=True) to make the output whole"
        )

    def _unfed(self, row: Split) -> Problem:
        makers = self._partners(row, 0)
        what = f"{self.key(row.path)} is split by rows, and no column split feeds it"
        if makers:
            what += f": {list_choices(makers)} is whole"
        give = f"give {list_choices(makers) if makers else 'the layers that make its input'} colwise"
        return Problem("row-unfed", what, f"{give}, or leave it whole")

    def _partners(self, split: Split, dim: int) -> list[str]:
        """Keys of the nearest whole linear layers whose dimension `dim` is as wide as a part of `split`."""
        wanted = {*split.parts, sum(split.parts)}
        segments = split.path.split(".")
        for depth in range(len(segments) - 1, 0, -1):
            above = ".".join(segments[:depth]) + "."
            near = [
                self.key(path)
                for path, owned in self._skeleton.modules.items()
                if path.startswith(above) and path not in self._styles and (weight := owned.get("weight"))
                if len(weight.shape) == 2 and weight.kind != "embedding" and weight.shape[dim] in wanted
            ]
            if near:
                return list(dict.fromkeys(near))[:3]
        return []

    def _name(self, scope: Scope) -> str:
        return self.key(scope.path) if scope.path else "the model"


def _splits(skeleton: Skeleton, styles: Mapping[str, Style], cuts: Mapping[str, Cut]) -> Iterator[Split]:
    """Every layer that needs a partner."""
    for path, style in styles.items():
        weight = skeleton.modules.get(path, {}).get("weight")
        if weight is None or weight.kind not in style.kinds:  # a fault of its own
            continue
        if isinstance(style, Colwise | PackedColwise | Rowwise | PackedRowwise) and not _gathers(style):
            _, segments = cuts.get(f"{path}.weight", (0, ()))
            yield Split(path, style, tuple(segment.units * segment.unit for segment in segments))


def _gathers(style: Style) -> bool:
    return isinstance(style, Colwise) and style.gather


def _edges(matches: Mapping[str, Match]) -> set[str]:
    """The blocks that the first wildcard of each key stands for."""
    edges = set()
    for key, match in matches.items():
        segments = key.split(".")
        if "*" in segments:
            depth = segments.index("*") + 1
            edges |= {".".join(path.split(".")[:depth]) for path in match.paths}
    return edges


def _fused_by_name(split: Split) -> bool:
    name = split.path.rpartition(".")[2]
    return isinstance(split.style, Colwise) and _FUSED.search(name) is not None


def _sum_of_two(width: int, columns: Iterable[Split]) -> list[int] | None:
    """Widths of two parts that are together as wide."""
    parts = sorted({part for column in columns for part in column.parts})
    return next(([a, b] for at, a in enumerate(parts) for b in parts[at:] if a + b == width), None)


def _sum(parts: Sequence[int]) -> str:
    return " + ".join(map(str, parts)) or "?"
