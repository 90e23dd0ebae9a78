"""The layout: the same computation on ranks, every layer of it held against what one process kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from armillary.engine.request import CompleteRequest
from armillary.engine.worker import find_task
from armillary.layout import Layout
from armillary.models.registry import family_of
from armillary.parallel.load import load
from armillary.parallel.mesh import Mesh, build_mesh
from armillary.parallel.tensor import sharding_of
from armillary.proof.activations import Comparer, Part
from armillary.proof.case import Case, named
from armillary.proof.files import Files
from armillary.proof.progress import counted
from armillary.proof.run import run_case
from armillary.proof.watch import watched
from armillary.proof.weights import differing, dtypes_of_whole

if TYPE_CHECKING:
    from armillary.engine.worker import Rank


def compute(payload: Mapping[str, Any], rank: Rank) -> None:
    """The task of every rank: all cases, which share a layout; the first rank writes what all have found."""
    mesh = build_mesh(Layout(**payload["layout"]))
    for number, text in enumerate(payload["cases"]):
        case, files = Case.from_json(text), Files(Path(payload["folder"]) / str(number))
        with named(case):
            _compute(case, files, mesh, rank)


def _compute(case: Case, files: Files, mesh: Mesh, rank: Rank) -> None:
    model = _load(case, mesh, rank.device)
    sharding = sharding_of(model)
    assert sharding is not None, "what load gives is marked"
    branches, branch = _branches(case, mesh)
    comparer = Comparer(files.activations, Part.of(sharding.resolved, mesh), (branches, branch))
    label = f"Ranks, {case.layout}, {case.dtype}"
    with (
        counted(case.calls // branches, label, rank.heartbeat, shown=mesh.is_first) as on_call,
        watched(model, case.inputs_of, comparer.see, on_call),
    ):
        outputs = run_case(case, model, mesh)
    found = {
        "outputs": {name: _digest(tensor) for name, tensor in outputs.items()},
        "apart": [[call, place, apart] for (call, place), apart in comparer.apart.items()],
        "differing": differing(model, mesh, files.read("weights")),
        "dtypes": dtypes_of_whole(model),
    }
    everyone = mesh.everyone.share(found)
    if mesh.is_first:
        files.write("ranks", everyone)
        files.write_outputs("ranks", outputs)


def _load(case: Case, mesh: Mesh, device: torch.device) -> nn.Module:
    """The rank's part, as `generate` loads it, or as `load` does for a forward."""
    index = case.index()
    generates = case.request is not None
    family = family_of(str(index.config.get("_class_name")))
    model = load(
        index,
        layout=mesh.layout,
        mesh=mesh,
        dtype=getattr(torch, case.dtype),
        device=device,
        plan=case.plan,
        residency=case.residency,
        prefill=generates,
        leave_out=family.UNUSED_BY_GENERATION if generates and family else (),
    )
    if case.after_load:
        after_load: Any = find_task(case.after_load)
        with torch.no_grad():
            after_load(model, mesh)
    return model


def _branches(case: Case, mesh: Mesh) -> tuple[int, int]:
    """See `Comparer.calls`: one process runs both branches of guidance, one after the other."""
    if case.request is None or CompleteRequest.from_json(case.request).guidance_scale == 1.0:
        return 1, 0
    cfg = mesh.groups["cfg"]
    return (2, cfg.rank) if cfg.size > 1 else (1, 0)


def _digest(tensor: torch.Tensor) -> str:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype}{list(tensor.shape)} {hashlib.sha256(raw).hexdigest()}"
