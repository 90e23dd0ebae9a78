"""Every shipped plan, proven on small models: writes `docs/families.md`.

    python benchmarks/families.py [--check]

One row a class: its variants, the tp degrees that the published checkpoints allow, the share of the linear
weights inside blocks and of all bytes that is split, and how far tp 2 and tp 4 are from one process in
float32 (relative L2 over one forward, the farthest variant). Exits with 1 where a proof fails; with
`--check`, also where the page on disk tells of other classes, variants, degrees or shares.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import provenance

from armillary import Layout, resolve
from armillary.models.coverage import split_fraction, whole_layers
from armillary.models.published import published
from armillary.models.registry import families
from armillary.plan.resolve import ResolvedPlan
from armillary.proof.shipped import Row, verify_all

PAGE = Path(__file__).parent.parent / "docs" / "families.md"
HEAD = """# Model families

Every class here has a plan that ships with Armillary, and a proof: small models of each variant, with random
weights and large biases, give on 2 and on 4 ranks what one process gives, and the ranks hold equal bits.
`python benchmarks/families.py` writes this page; `armillary verify --all` shows the same figures, and
`armillary check --all` the plans. A class that is not here takes a plan of yours: [plans.md](plans.md).

Layers that turn the timestep into shifts, scales and gates are split too, and made whole again for the one
row that they have: in FLUX.1 they are a quarter of the weights.

| class | variants | published checkpoints: tp degrees | split: blocks / all bytes | farthest variant |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Line:
    """One class of the table."""

    model_class: str
    stable: str
    """What is the same in every run."""
    farthest: str
    """The greatest distance at each degree."""

    def __str__(self) -> str:
        return f"{self.stable} {self.farthest} |"


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Prove every shipped plan and write docs/families.md.")
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    arguments = parser.parse_args()
    rows, skipped = verify_all()
    lines = [_line(name, rows) for name in families()]
    failed = [row.line() for row in rows if not row.report.ok]
    print("\n".join([*(one.line() for one in skipped), *failed]), file=sys.stderr)
    if not arguments.check:
        PAGE.write_text(_page(lines, rows))
        return int(bool(failed))
    page = PAGE.read_text()
    stale = [line.model_class for line in lines if line.stable not in page]
    print("\n".join(f"{name}: the page tells something else" for name in stale))
    return int(bool(stale or failed))


def _line(name: str, rows: Sequence[Row]) -> Line:
    mine = [row for row in rows if row.case.model_class == name]
    known = [one for one in published().values() if one.model_class == name]
    resolved = {one.name: resolve(one.skeleton(), Layout(tp=2)) for one in known}
    cells = (
        f"`{name}`",
        ", ".join(dict.fromkeys(row.case.variant for row in mine)),
        "<br>".join(f"{one}: {', '.join(map(str, plan.legal_tp))}" for one, plan in resolved.items())
        or "see the [README](../README.md)",
        _shares(list(resolved.values())),
    )
    return Line(name, f"| {' | '.join(cells)} |", "<br>".join(_farthest(mine)))


def _shares(resolved: Sequence[ResolvedPlan]) -> str:
    """Of the blocks' linear weights, and of all bytes; the lowest of the checkpoints."""
    if not resolved:
        return ""
    blocks = min(split_fraction(one) for one in resolved)
    everything = min(_split_bytes(one) / one.skeleton.nbytes for one in resolved)
    whole = sorted({layer for one in resolved for layer in whole_layers(one)})
    return f"{blocks:.1%} / {everything:.1%}" + "".join(f"<br>whole: {layer}" for layer in whole)


def _split_bytes(resolved: ResolvedPlan) -> int:
    return sum(resolved.skeleton.parameters[name].nbytes for name in resolved.shards)


def _farthest(rows: Iterable[Row]) -> Iterator[str]:
    by_degree: dict[int, list[float]] = {}
    for row in rows:
        by_degree.setdefault(row.report.layout.tp, []).append(row.report.relative_l2)
    for tp, distances in sorted(by_degree.items()):
        yield f"tp {tp}: {max(distances):.1e}"


def _page(lines: Sequence[Line], rows: Sequence[Row]) -> str:
    where = provenance()
    bound = max(row.report.tolerance for row in rows)
    foot = (
        f"Distances are relative L2 in float32, and may be {bound:.0e}: {len(rows)} proofs, commit "
        f"{str(where['commit'])[:12]}, {where['date']}, on a CPU with gloo."
    )
    return HEAD + "\n".join([*map(str, lines), "", foot, ""])


if __name__ == "__main__":
    sys.exit(main())
