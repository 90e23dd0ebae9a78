"""`armillary check`: a plan held against a checkpoint's own tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.cli.options import (
    LAYOUT,
    RESIDENCY,
    PlanFile,
    degrees_of,
    refusals_as_json,
    residency_of,
    takes,
)

if TYPE_CHECKING:
    from armillary.checks.report import CheckReport, Variant


@takes(Layout=LAYOUT, Residency=RESIDENCY)
def check(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A folder or a hub id, of a pipeline or of a model.", show_default=False
        ),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--all", help="Every shipped plan against every kind of config it claims.")
    ] = False,
    plan: PlanFile = None,
    subfolder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the model in a pipeline; else transformer.")
    ] = None,
    print_plan: Annotated[
        bool,
        typer.Option(
            "--print-plan", help="Print the merged plan, or a draft where there is none, for --plan."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    **flags: Any,
) -> None:
    """Hold a plan against a checkpoint's own tensors.

    Reads configs and the headers of the tensors, nothing more: what each rule matches, what is split and what
    every rank has whole, how many bytes a rank holds, and all that is wrong. Exit code 1: something is.
    """
    from armillary.checks import run

    if shipped:
        _refuse_beside_all([checkpoint, plan, subfolder, print_plan, *flags.values()])
        _print_all(run.check_all(), as_json)
        return
    if checkpoint is None:
        raise typer.BadParameter("name a MODEL, or check the shipped plans with --all")
    names = ("rules", "split", "replicated", "skipped_optional", "bytes_per_rank")
    nothing: dict[str, list[object]] = {name: [] for name in names}
    with refusals_as_json(as_json, {"ok": False, **nothing}):
        report = run.check(
            checkpoint,
            degrees_of(flags),
            subfolder=subfolder,
            overrides=plan,
            residency=residency_of(flags),
        )
    if print_plan:
        typer.echo(json.dumps(report.plan_to_edit(), indent=2))
    elif as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print_report(report)
    if not report.ok and not print_plan:
        raise typer.Exit(1)


def _refuse_beside_all(given: list[Any]) -> None:
    if any(given):
        raise typer.BadParameter("--all checks every shipped plan, so that it takes --json and nothing else")


def _print_report(report: CheckReport) -> None:
    from armillary.checks.table import show

    show(report)


def _print_all(checked: Mapping[str, tuple[Variant, ...]], as_json: bool) -> None:
    from armillary.checks.report import all_to_json
    from armillary.checks.table import show_all

    if as_json:
        typer.echo(json.dumps(all_to_json(checked), indent=2))
    else:
        show_all(checked)
    if any(variant.problems for variants in checked.values() for variant in variants):
        raise typer.Exit(1)
