"""Everything about a generation that can be refused before a weight is read or a process is started."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from armillary.checkpoint.index import read_index, read_object
from armillary.checkpoint.locate import is_here, locate, locate_configs
from armillary.engine.abilities import Abilities, abilities
from armillary.engine.eviction import is_open, with_eviction
from armillary.engine.launch import rank_problems
from armillary.engine.media import check_output, probe_media
from armillary.engine.request import CompleteRequest, GenerationRequest, complete
from armillary.errors import LayoutError, Problem, Refusals, RequestError, list_choices
from armillary.layout import Layout
from armillary.models.described import DescribedCheckpoint, class_named_in, describe
from armillary.models.registry import resolve, skeleton_for
from armillary.plan.resolve import ResolvedPlan
from armillary.plan.skeleton import Skeleton
from armillary.residency import Residency

DTYPES = ("float32", "bfloat16", "float16")
"""In which a generation can be computed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A generation that has passed every check."""

    request: CompleteRequest
    folder: Path
    layout: Layout
    dtype: str
    resolved: ResolvedPlan
    residency: Residency
    plan: Mapping[str, Any] | None
    """In place of the registered one, as JSON."""

    def payload(self, output: Path) -> dict[str, Any]:
        """What the ranks are told, as JSON."""
        return {
            "request": self.request.to_json(),
            "folder": str(self.folder),
            "layout": self.layout.degrees,
            "dtype": self.dtype,
            "residency": asdict(self.residency),
            "plan": self.plan,
            "output": str(output),
        }


def prepare(
    request: GenerationRequest | Mapping[str, Any],
    checkpoint: str | Path,
    layout: Layout | Mapping[str, int],
    *,
    dtype: str | None = None,
    residency: Residency | Mapping[str, Any] | None = None,
    overrides: Mapping[str, object] | None = None,
    output: Path | None = None,
    here: bool = False,
    problems: Iterable[Problem] = (),
) -> Job:
    """Check a generation against configs, tensor headers and its input files.

    With `here` this machine must also have the devices (which imports torch; nothing else does), and where
    `residency` leaves eviction open, its memory decides.

    Raises `ArmillaryError` with every problem at once: `problems`, which the caller found, and those of the
    request, the files it names, the output, the checkpoint, the layout and the dtype.
    """
    refusals = Refusals()
    refusals.add(RequestError, problems)
    degrees = _layout(layout, here, refusals)
    home = _residency(residency, refusals)
    asked = _request(request, refusals)
    if not is_here(checkpoint):
        _refuse_before_download(str(checkpoint), asked, degrees, overrides, output, refusals)
    able = filled = described = resolved = None
    with refusals.collect():
        folder = locate(checkpoint, whole=True)
        with refusals.collect():
            able = abilities(folder)
            filled = _complete(asked, able, degrees, output, refusals) if asked else None
        _check_parts(folder, refusals)
        described = _described(folder, dtype, refusals)
        if filled and degrees:
            refusals.add(LayoutError, _row_problems(degrees, filled, able, described))
    if output and os.environ.get("RANK", "0") == "0":  # under torchrun the first rank writes
        refusals.add(RequestError, check_output(output, filled.num_frames if filled else None))
    with refusals.collect():
        if described and degrees:
            resolved = resolve(described.skeleton, degrees, overrides=overrides)
    refusals.raise_if_any()
    assert filled is not None, "without a problem there is a complete request"
    assert described is not None, "and a checkpoint"
    assert degrees is not None, "and a layout"
    assert resolved is not None, "and its shards"
    if here and is_open(residency):
        home = with_eviction(home, folder, filled, degrees, main_dtype(described))
    return Job(
        request=filled,
        folder=folder,
        layout=degrees,
        dtype=main_dtype(described),
        resolved=resolved,
        residency=home,
        plan=resolved.plan.to_json() if overrides else None,
    )


def _refuse_before_download(
    repo: str,
    asked: GenerationRequest | None,
    layout: Layout | None,
    overrides: Mapping[str, object] | None,
    output: Path | None,
    refusals: Refusals,
) -> None:
    """What the configs of a hub repo refuse, before its weights (128 GB, say) are fetched."""
    with refusals.collect():
        configs = locate_configs(repo)
        with refusals.collect():
            if asked:
                _complete(asked, abilities(configs), layout, output, refusals)
        config = read_object(configs / "transformer" / "config.json")
        skeleton = skeleton_for(class_named_in(config, configs / "transformer"), config)
        if layout:
            resolve(skeleton, layout, overrides=overrides)
    refusals.raise_if_any()


def _complete(
    asked: GenerationRequest, able: Abilities, layout: Layout | None, output: Path | None, refusals: Refusals
) -> CompleteRequest:
    filled = complete(asked, able, output.suffix if output else None)
    if layout:
        refusals.add(LayoutError, _guidance_problems(layout, filled, able))
    return filled


def main_dtype(described: DescribedCheckpoint) -> str:
    """The dtype in which most bytes of a model are held."""
    totals: Counter[str] = Counter()
    for parameter in described.skeleton.parameters.values():
        totals[parameter.dtype] += parameter.nbytes
    return totals.most_common(1)[0][0]


def _layout(layout: Layout | Mapping[str, int], here: bool, refusals: Refusals) -> Layout | None:
    degrees = None
    with refusals.collect():
        degrees = layout if isinstance(layout, Layout) else Layout(**_known(layout, Layout))
        if here:
            refusals.add(LayoutError, rank_problems(degrees.world_size))
    return degrees


def _residency(residency: Residency | Mapping[str, Any] | None, refusals: Refusals) -> Residency:
    home = Residency()
    with refusals.collect():
        home = (
            residency if isinstance(residency, Residency) else Residency(**_known(residency or {}, Residency))
        )
    return home


def _check_parts(folder: Path, refusals: Refusals) -> None:
    """The headers of the VAE's weights, and the files without which the other parts cannot be loaded."""
    with refusals.collect():
        read_index(folder / "vae")
    needed = ("scheduler/scheduler_config.json", "text_tokenizer/tokenizer_config.json")
    for file in needed:
        with refusals.collect():
            read_object(folder / file)


def _row_problems(
    layout: Layout, request: CompleteRequest, able: Abilities | None, described: DescribedCheckpoint
) -> list[Problem]:
    """More ranks than rows of the sequence would have nothing to do."""
    return [] if able is None else row_problems(layout, request, able, latent_patch(described.skeleton))


def latent_patch(skeleton: Skeleton) -> int:
    """Latent rows and columns that make one token."""
    return int(skeleton.config.get("latent_patch_size", 2))


def row_problems(layout: Layout, request: CompleteRequest, able: Abilities, patch: int) -> list[Problem]:
    """What `prepare` says about the rows of the sequence, for a checkpoint that is described already."""
    patch *= able.spatial_grid
    frames = (request.num_frames - 1) // able.temporal + 1
    rows = frames * -(-request.width // patch) * -(-request.height // patch)
    ranks = layout.ring * layout.gather * layout.ulysses
    if ranks <= rows:
        return []
    why = f"ring x gather x ulysses = {ranks} ranks share {rows} rows of the sequence"
    return [Problem("rows", why, f"use at most {rows}, or a larger picture")]


def _known(values: Mapping[str, Any], kind: type[Layout | Residency]) -> Mapping[str, Any]:
    """Refuse keys that a layout or a residency does not have."""
    names = [field.name for field in fields(kind)]
    if unknown := [key for key in values if key not in names]:
        raise LayoutError(
            Problem("unknown-key", f"{key!r} is not part of a {kind.__name__}", f"use {list_choices(names)}")
            for key in unknown
        )
    return values


def _guidance_problems(layout: Layout, request: CompleteRequest, able: Abilities) -> list[Problem]:
    """cfg=2 computes two branches; where there is one, the second group computes the same again."""
    if layout.cfg == 1 or request.guidance_scale != 1.0:
        return []
    if able.distilled:
        why = f"cfg={layout.cfg}, but a distilled checkpoint has no second branch of guidance"
        return [Problem("cfg-branches", why, "use cfg=1, and the ranks for another axis")]
    warnings.warn(
        f"cfg={layout.cfg} with guidance 1 saves nothing: both groups compute the one branch",
        RuntimeWarning,
        stacklevel=2,
    )
    return []


def _request(request: GenerationRequest | Mapping[str, Any], refusals: Refusals) -> GenerationRequest | None:
    asked = None
    with refusals.collect():
        asked = request if isinstance(request, GenerationRequest) else GenerationRequest.parse(request)
        refusals.add(RequestError, probe_media(asked))
    return asked


def _described(folder: Path, dtype: str | None, refusals: Refusals) -> DescribedCheckpoint:
    """The transformer as it will be loaded: in `dtype`, or in the one it is mostly stored in."""
    stored = describe(folder / "transformer")
    dtype = dtype or main_dtype(stored)
    if dtype in DTYPES:
        return describe(folder / "transformer", dtype=dtype)
    fix = f"use {list_choices(DTYPES)}"
    refusals.add(RequestError, [Problem("dtype", f"a generation cannot be computed in {dtype}", fix)])
    return stored
