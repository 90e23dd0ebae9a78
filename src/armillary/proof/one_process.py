"""The truth: diffusers' own model, whole, in one process. It keeps what every layer computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from armillary.checkpoint.dtypes import BY_NAME
from armillary.checkpoint.index import CheckpointIndex
from armillary.models.described import class_named_in
from armillary.models.registry import held_dtype, resolve
from armillary.parallel.load import build_on_meta, find_class
from armillary.parallel.tensor import place
from armillary.proof.activations import Comparer, Keeper, Part
from armillary.proof.case import Case, named
from armillary.proof.files import Files
from armillary.proof.progress import counted
from armillary.proof.run import run_case
from armillary.proof.watch import See, watched
from armillary.proof.weights import expected_prints

if TYPE_CHECKING:
    from armillary.engine.worker import Rank


def compute(payload: Mapping[str, Any], rank: Rank) -> None:
    """The task of the one process: every case in float32, then in its yardstick's dtype."""
    for number, text in enumerate(payload["cases"]):
        case, files = Case.from_json(text), Files(Path(payload["folder"]) / str(number))
        with named(case):
            _compute_both(case, files, rank)


def _compute_both(case: Case, files: Files, rank: Rank) -> None:
    keeper = Keeper(files.activations)
    _compute(case, files, "float32", rank, keeper.see)
    keeper.write()
    if case.yardstick:
        comparer = Comparer(files.activations, Part())
        _compute(case, files, case.yardstick, rank, comparer.see)
        files.write("rounding", [[call, place, apart] for (call, place), apart in comparer.apart.items()])


def _compute(case: Case, files: Files, dtype: str, rank: Rank, see: See) -> None:
    model = stock_model(case, dtype, rank.device)
    if dtype == case.dtype:
        resolved = resolve(model, case.layout, plan=case.plan)
        files.write("weights", expected_prints(model, resolved))
    with (
        counted(case.calls, f"One process, {dtype}", rank.heartbeat) as on_call,
        watched(model, case.inputs_of, see, on_call),
    ):
        files.write_outputs(dtype, run_case(case, model, None))


@torch.no_grad()
def stock_model(case: Case, dtype: str, device: torch.device) -> nn.Module:
    """The whole model as diffusers loads it, in `dtype`; nothing here is Armillary's own reader."""
    index = case.index()
    held = torch.float32 if dtype == "float64" else getattr(torch, dtype)
    model = _from_pretrained(index, held) if case.layers is None else _first_blocks(index, held)
    model = model.double() if dtype == "float64" else model
    return model.to(device).eval()


def _from_pretrained(index: CheckpointIndex, dtype: torch.dtype) -> nn.Module:
    cls = find_class(class_named_in(index.config, index.folder), index.folder)
    model: nn.Module = cls.from_pretrained(index.folder, torch_dtype=dtype, local_files_only=True)
    return model


def _first_blocks(index: CheckpointIndex, dtype: torch.dtype) -> nn.Module:
    """A model of fewer blocks than its checkpoint: diffusers would read the others too."""
    from safetensors import safe_open

    model = build_on_meta(index, dtype)
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    asked = BY_NAME[str(dtype).removeprefix("torch.")]
    for file in {entry.file for entry in index.tensors.values()}:
        with safe_open(file, framework="pt") as tensors:
            for name in index.tensors.keys() & tensors.keys():
                held = getattr(torch, held_dtype(name, asked, kept).name)
                place(model, name, tensors.get_tensor(name).to(held))
    return model
