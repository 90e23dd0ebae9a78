"""`Case`: what one process and the ranks are both told to compute. Goes to them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from armillary.checkpoint.index import CheckpointIndex, read_index
from armillary.layout import Layout
from armillary.models.described import class_named_in
from armillary.models.registry import family_of, skeleton_for
from armillary.proof.cut import cut
from armillary.residency import Residency


@dataclass(frozen=True, kw_only=True)
class Case:
    """One computation, on a layout and in one process."""

    folder: Path
    """The model's own folder, with its `config.json`."""
    pipeline: Path | None = None
    """The folder of the pipeline; None where one forward of the model is computed."""
    request: str | None = None
    """The complete request as JSON; None for a forward."""
    layout: Layout
    dtype: str
    """In which the ranks compute."""
    yardstick: str | None
    """The dtype in which one process computes again: how far that is from float32 says what rounding does."""
    residency: Residency = field(default_factory=Residency)
    plan: Mapping[str, Any] | None = None
    """Replaces the registered plan, as JSON; None: that one."""
    layers: int | None = None
    """At most so many blocks of each list; None: all."""
    inputs: str | None = None
    """ "module:function" that makes the inputs of a forward; None: those of the model's family."""
    after_load: str | None = None
    """ "module:function", called on every rank as `function(model, mesh)`."""
    inputs_of: tuple[str, ...] = ()
    """Modules whose input is compared too: those whose input the plan splits."""
    calls: int = 1
    """How often one process calls the model."""

    def index(self) -> CheckpointIndex:
        """The model's checkpoint, cut to `layers`."""
        index = read_index(self.folder)
        return index if self.layers is None else cut(index, self.layers, lambda c: names_of(index, c))

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        for name in ("folder", "pipeline"):
            fields[name] = None if fields[name] is None else Path(fields[name])
        made = {"layout": Layout(**fields["layout"]), "residency": Residency(**fields["residency"])}
        return cls(**{**fields, **made, "inputs_of": tuple(fields["inputs_of"])})


@contextmanager
def named(case: Case) -> Iterator[None]:
    """An error raised inside says which case it was: several may share a group of ranks."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {case.folder.name} was computed for {case.layout}")
        raise


def names_of(index: CheckpointIndex, config: Mapping[str, Any]) -> list[str]:
    """The parameters of a model of the index's class with another config."""
    name = class_named_in(config, index.folder)
    if family_of(name):
        return list(skeleton_for(name, config).parameters)
    from armillary.models.meta import skeleton_on_meta

    return list(skeleton_on_meta(name, config).parameters)
