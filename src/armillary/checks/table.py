"""What `armillary check` has found, as tables for a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from armillary.checks.report import CheckReport, Held, Variant
from armillary.errors import list_choices
from armillary.plan.explain import key_of

LARGEST = 12
"""Lines of replicated layers that are shown."""


def show(report: CheckReport, console: Console | None = None) -> None:
    """Print a report: the rules, the largest replicated layers, bytes, and every problem with its fix."""
    console = console or _console()
    total, split = report.skeleton.nbytes, sum(held.nbytes for held in report.split)
    count = len(report.skeleton.parameters)
    console.print(f"[bold]{escape(report.title)}[/]: {_size(total)} in {count} tensors")
    if report.rules:
        console.print(_rules(report))
    if report.replicated:
        console.print(_replicated(report))
    degrees = list_choices(report.legal_tp)
    console.print(f"split: {_size(split)}, {split / total:.1%} of all; legal tp: {degrees}")
    if report.bytes_per_rank:
        console.print(
            f"{report.layout}: {_per_rank(report.bytes_per_rank)} of weights on each tp rank's device"
        )
    if any(report.bytes_elsewhere):
        console.print(f"and {_per_rank(report.bytes_elsewhere)} elsewhere")
    for problem in report.problems:
        console.print(f"[red]problem[/] {escape(problem.message)}")
        console.print(f"        [green]{escape(problem.fix)}[/]" if problem.fix else "")
    console.print("[green]the plan fits[/]" if report.ok else f"[red]{len(report.problems)} problems[/]")


def show_all(checked: Mapping[str, Iterable[Variant]], console: Console | None = None) -> None:
    """Print every registered class with its variants."""
    console = console or _console()
    table = _table("class", "variant", "legal tp", "problems")
    for name, variants in checked.items():
        for variant in variants:
            degrees = ", ".join(map(str, variant.legal_tp))
            table.add_row(
                name, variant.name, degrees, escape("\n".join(map(str, variant.problems))) or "none"
            )
    console.print(table)


def _console() -> Console:
    # wide where it goes into a file: a cut line says less
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rules(report: CheckReport) -> Table:
    table = _table("rule", "style", "matched", "from")
    for rule in report.rules:
        found = len(rule.matched)
        there = f"{found} of {found + rule.absent} blocks" if found and rule.absent else str(found or "-")
        skipped = " skipped" if not found and rule.key in report.skipped_optional else ""
        table.add_row(escape(rule.key), escape(rule.style), there + skipped, escape(rule.source))
    return table


def _replicated(report: CheckReport) -> Table:
    """The replicated parameters by layer, the same layer of all blocks together, large ones first."""
    table = _table("on every rank", "bytes", "tensors", "")
    nbytes: Counter[str] = Counter()
    held: dict[str, list[Held]] = {}
    for one in report.replicated:
        path, _, leaf = one.name.rpartition(".")
        key = f"{key_of(path, report.skeleton.tree)}.{leaf}" if path else leaf
        nbytes[key] += one.nbytes
        held.setdefault(key, []).append(one)
    for key, size in nbytes.most_common(LARGEST):
        table.add_row(escape(key), _size(size), str(len(held[key])), held[key][0].why)
    rest = nbytes.most_common()[LARGEST:]
    if rest:
        count = sum(len(held[key]) for key, _ in rest)
        table.add_row(f"{len(rest)} smaller", _size(sum(size for _, size in rest)), str(count), "")
    return table


def _per_rank(sizes: Iterable[int]) -> str:
    return ", ".join(f"{count} x {_size(size)}" for size, count in Counter(sizes).items())


def _size(nbytes: int) -> str:
    size, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.2f} {units[0]}"
