"""`armillary.verify`: a layout is run beside one process, and how far apart they are is said."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from armillary.engine.launch import run_ranks
from armillary.layout import Layout
from armillary.plan.plan import ParallelPlan
from armillary.proof.case import Case
from armillary.proof.files import Files
from armillary.proof.prepare import Asked, prepare
from armillary.proof.report import VerifyReport
from armillary.residency import Residency

_ONE_PROCESS = "armillary.proof.one_process:compute"
_ON_RANKS = "armillary.proof.on_ranks:compute"


def verify(
    checkpoint: str | Path,
    layout: Layout | Mapping[str, int] = Layout(),
    *,
    request: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    residency: Residency | Mapping[str, Any] | None = None,
    plan: ParallelPlan | Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    layers: int | None = None,
    inputs: str | None = None,
    after_load: str | None = None,
    step_timeout: float = 600.0,
    init_timeout: float = 1800.0,
) -> VerifyReport:
    """Prove that `layout` computes what one process computes, or say where it begins not to.

    One process runs diffusers' own model, whole, in float32 and once more for what rounding does; then
    ranks of this machine run the layout, as `generate` does, on the same inputs. A pipeline makes a short
    generation, compared at the final latents; any other model one forward. Every layer's activations are
    compared on the way, and at the end every weight and buffer bit for bit. The two sides never run at
    once: what they compute lies in files in between.

    Args:
        checkpoint: a folder or hub id, of a pipeline or of a model.
        layout: the degrees; a mapping of axis to degree is taken too.
        request: fields of the generation that are to differ from a small one of 4 steps with guidance.
        dtype: torch's name of the dtype in which the ranks compute; None takes the one in which most of
            the transformer is stored.
        residency: where the weights of the blocks live on the ranks; None: on the device.
        plan: replaces the registered plan; `overrides` are merged into it key by key.
        layers: cut the model to at most so many blocks of each list; the others are not read.
        inputs: "package.module:function", called as `function(model)`, whose result are the keyword arguments
            of a forward: for a model without a pipeline that Armillary has no inputs for.
        after_load: "package.module:function", called on every rank as `function(model, mesh)` once the
            model is loaded: for what a script of yours does to it then.
        step_timeout: seconds after which a rank that shows no progress has stalled.
        init_timeout: the same for the time until every rank is ready.

    Raises:
        ArmillaryError: (RequestError, CheckpointError, LayoutError, PlanError) what was asked cannot be,
            told before a weight is read or a process started.
        EngineError: a rank raised, died or stalled.
    """
    asked = Asked(
        request=request or {},
        dtype=dtype,
        residency=residency,
        plan=plan,
        overrides=overrides,
        layers=layers,
        inputs=inputs,
        after_load=after_load,
    )
    case, resolved = prepare(checkpoint, layout, asked)
    with tempfile.TemporaryDirectory(prefix="armillary-") as scratch:
        (files,) = compute([case], Path(scratch), step_timeout=step_timeout, init_timeout=init_timeout)
        from armillary.proof.judge import judge

        return judge(case, files, resolved)


def compute(
    cases: Sequence[Case], folder: Path, *, step_timeout: float = 600.0, init_timeout: float = 1800.0
) -> list[Files]:
    """Run cases of one layout, first in one process and then on ranks, and return what they left."""
    layout = cases[0].layout
    payload = {
        "folder": str(folder),
        "layout": layout.degrees,
        "cases": [case.to_json() for case in cases],
    }
    for task, ranks in ((_ONE_PROCESS, 1), (_ON_RANKS, layout.world_size)):
        run_ranks(task, payload, ranks, step_timeout=step_timeout, init_timeout=init_timeout)
    return [Files(folder / str(number)) for number in range(len(cases))]
