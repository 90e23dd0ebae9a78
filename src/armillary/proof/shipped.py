"""`armillary verify --all`: the shipped plans, each proven on small models of its class."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import ArmillaryError, LayoutError, PlanError, Problem, list_choices
from armillary.layout import Layout
from armillary.models.registry import known_classes
from armillary.models.tiny_cases import TinyCase, tiny_cases
from armillary.plan.resolve import ResolvedPlan
from armillary.proof.case import Case
from armillary.proof.prepare import Asked, prepare
from armillary.proof.report import VerifyReport, finite
from armillary.proof.verify import compute

DEGREES = (2, 4)
"""The tp degrees of a proof, where the heads of a model allow them."""


@dataclass(frozen=True)
class Row:
    """One small model on one layout."""

    case: TinyCase
    report: VerifyReport

    def to_json(self) -> dict[str, Any]:
        """As `armillary verify --all --json` prints it."""
        return {
            "class": self.case.model_class,
            "variant": self.case.variant,
            "tp": self.report.layout.tp,
            "relative_l2": finite(self.report.relative_l2),
            "split_fraction": self.report.split_fraction,
            "ranks_equal": self.report.ranks_equal,
            "ok": self.report.ok,
            "tolerance": finite(self.report.tolerance),
            "first_divergence": self.report.first_divergence,
            "layout": self.report.layout.degrees,
        }

    def line(self) -> str:
        """As `armillary verify --all` prints it."""
        report = self.report
        where = "" if report.ok else f"  NOT OK: {report.first_divergence or 'see weights and outputs'}"
        return (
            f"{self.case.label:48} {report.layout!s:12} {report.relative_l2:.1e} of {report.tolerance:.1e}  "
            f"{report.split_fraction:6.1%} split{where}"
        )


@dataclass(frozen=True)
class Skipped:
    """One small model that a layout cannot be used for."""

    case: TinyCase
    layout: Layout
    why: str

    def to_json(self) -> dict[str, Any]:
        """As `armillary verify --all --json` prints it."""
        case = self.case
        return {
            "class": case.model_class,
            "variant": case.variant,
            "layout": self.layout.degrees,
            "why": self.why,
        }

    def line(self) -> str:
        """As `armillary verify --all` prints it."""
        return f"{self.case.label:48} {self.layout!s:12} skipped: {self.why}"


def verify_all(
    layouts: Sequence[Layout] | None = None,
    *,
    model_class: str | None = None,
    dtype: str = "float32",
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
) -> tuple[list[Row], list[Skipped]]:
    """One forward of every registered class and variant, on ranks and in one process; see `verify`.

    Args:
        layouts: by default tp 2 and tp 4.
        model_class: only this one.

    Raises:
        PlanError: `model_class` is not registered, or a shipped plan does not fit its own models.
        LayoutError: no model can do any of the layouts.
        EngineError: a rank raised, died or stalled; the error names the model.
    """
    timeouts = {"step_timeout": step_timeout, "init_timeout": init_timeout}
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with tempfile.TemporaryDirectory(prefix="armillary-") as scratch:
        models = [(case, _write(case, Path(scratch) / case.label)) for case in _chosen(model_class)]
        for number, layout in enumerate(layouts or [Layout(tp=degree) for degree in DEGREES]):
            fitting = []
            for tiny, folder in models:
                try:
                    fitting.append((tiny, *prepare(folder, layout, Asked(request={}, dtype=dtype))))
                except (LayoutError, PlanError) as error:
                    if not _is_of_the_layout(error):
                        raise
                    skipped.append(Skipped(tiny, layout, "; ".join(map(str, error.problems))))
            rows += _prove(fitting, Path(scratch) / f"run-{number}", timeouts)
    if not rows:
        raise LayoutError(Problem("nothing-proven", f"{one.case.label}: {one.why}") for one in skipped)
    return rows, skipped


def _is_of_the_layout(error: ArmillaryError) -> bool:
    """Whether a model is only not for such a layout; a shipped tensor plan that does not fit is a fault."""
    return isinstance(error, LayoutError) or all(p.rule.startswith("context-") for p in error.problems)


def _prove(
    fitting: Sequence[tuple[TinyCase, Case, ResolvedPlan]], folder: Path, timeouts: Mapping[str, float]
) -> Iterator[Row]:
    """All models that a layout fits, on one group of ranks."""
    from armillary.proof.judge import judge

    if fitting:
        left = compute([case for _, case, _ in fitting], folder, **timeouts)
        for (tiny, case, resolved), files in zip(fitting, left, strict=True):
            yield Row(tiny, judge(case, files, resolved))


def _chosen(model_class: str | None) -> list[TinyCase]:
    if model_class is not None and model_class not in known_classes():
        what = f"{model_class} has no registered plan"
        raise PlanError(Problem("unknown-class", what, f"registered: {list_choices(known_classes())}"))
    return [case for case in tiny_cases() if model_class in (None, case.model_class)]


def _write(case: TinyCase, folder: Path) -> Path:
    """The small model as a checkpoint, which both sides read."""
    case.model().save_pretrained(folder)
    return folder
