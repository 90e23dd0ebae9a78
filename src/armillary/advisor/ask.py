"""`ask`: from what a deployer knows to an answer. The top of the advisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from armillary.advisor.advice import advise_on
from armillary.advisor.engines import find_engine
from armillary.advisor.hardware import Gpu
from armillary.advisor.model import DTYPES, find_model
from armillary.advisor.option import DEVICES_PER_NODE, RESIDENCIES, Option, Question
from armillary.advisor.rules import residency_problems
from armillary.advisor.search import (
    Found,
    Refused,
    doublings,
    fixed,
    possible_residencies,
    rank_key,
    search,
    smallest,
)
from armillary.advisor.workload import workload_of
from armillary.engine.modes import INPUTS
from armillary.engine.request import GenerationRequest, complete
from armillary.errors import LayoutError, Problem, Refusals, RequestError, list_choices
from armillary.layout import Layout
from armillary.residency import Residency

MOST_GPUS = 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything that a report shows."""

    question: Question
    given: Mapping[str, Any]
    """The fields of the request that were given."""
    counts: tuple[int, ...]
    """Numbers of devices that were asked about."""
    options: tuple[Option, ...]
    """Best first."""
    refused: tuple[Refused, ...]
    smallest: Mapping[str, Option | None]
    """By residency: with the fewest devices of the card."""
    doublings: Mapping[int, Option]
    advice: tuple[str, ...]

    @property
    def best(self) -> Option | None:
        """The fastest that fits; None: nothing does."""
        return next((option for option in self.options if option.fits), None)


def ask(
    model: str,
    gpu: Gpu,
    *,
    counts: Sequence[int] = (),
    nodes: int = 1,
    engine: str = "armillary",
    request: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    residency: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> Answer:
    """Whether and how a generation fits, and how long it takes. Nothing is read but configs and headers.

    Args:
        model: a folder, a hub id in the cache, or a name that ships with the package.
        counts: numbers of devices in all; left out, as many as `layout` has, or 1.
        nodes: machines that they are spread over.
        request: fields of a generation; what is left out takes the published settings.
        layout: degrees, where one layout alone is asked about.
        residency: fields of `Residency`, where one alone is asked about.

    Raises `ArmillaryError` with every problem: exit code 2.
    """
    refusals = Refusals()
    degrees = home = question = None
    with refusals.collect():
        degrees = Layout(**layout) if layout else None
    with refusals.collect():
        home = Residency(**residency) if residency else None
    with refusals.collect():
        question = question_about(model, gpu, engine, request or {}, dtype)
    refusals.add(RequestError, _count_problems(counts, nodes, degrees))
    if question and home:
        refusals.add(LayoutError, residency_problems(question.engine, home))
    if question and home and home.moves and question.model.facts:
        why = f"residency is for Cosmos 3; {question.model.model_class} stays on the device"
        refusals.add(LayoutError, [Problem("residency", why, "leave it out")])
    refusals.raise_if_any()
    assert question is not None, "without a problem there is a question"
    places = [home.on("cuda")] if home else None
    asked = tuple(counts) or (degrees.world_size if degrees else 1,)
    devices = max(asked)
    per_node = devices // nodes if nodes > 1 else max(devices, DEVICES_PER_NODE)
    question = replace(question, per_node=per_node)
    return _answer(question, request or {}, asked, degrees, places)


def _answer(
    question: Question,
    given: Mapping[str, Any],
    counts: tuple[int, ...],
    layout: Layout | None,
    places: list[Residency] | None,
) -> Answer:
    found = fixed(question, layout, places) if layout else _search_all(question, counts, places)
    devices = max(counts)
    possible = possible_residencies(question)
    fewest = smallest(question, [place for place in RESIDENCIES.values() if place in possible])
    more = doublings(question, devices, places)
    return Answer(
        question=question,
        given=given,
        counts=counts,
        options=found.options,
        refused=found.refused,
        smallest=fewest,
        doublings=more,
        advice=tuple(advise_on(question, devices, found.options, fewest, more)),
    )


def _search_all(question: Question, counts: Sequence[int], places: list[Residency] | None) -> Found:
    """All counts of a range together, each layout once."""
    results = [search(question, count, places) for count in counts]
    if len(results) == 1:
        return results[0]
    options: dict[tuple[Layout, Residency], Option] = {}
    for result in results:
        options |= {(option.layout, option.residency): option for option in result.options}
    ranked = sorted(options.values(), key=rank_key)
    return Found(tuple(ranked), tuple(refused for result in results for refused in result.refused))


def question_about(
    model: str, gpu: Gpu, engine: str, request: Mapping[str, Any], dtype: str | None = None
) -> Question:
    """The question alone, of which single layouts can be judged; raises as `ask` does."""
    refusals = Refusals()
    chosen = found = filled = None
    if dtype is not None and dtype not in DTYPES:
        fix = f"use {list_choices(DTYPES)}"
        refusals.add(RequestError, [Problem("dtype", f"a generation cannot be computed in {dtype}", fix)])
        dtype = None
    with refusals.collect():
        chosen = find_engine(engine)
    with refusals.collect():
        found = find_model(model, dtype)
    with refusals.collect():
        usual = {"mode": found.mode} if found and found.mode else {}
        asked = GenerationRequest.parse({"prompt": "...", **usual, **request})
        if found and found.facts and asked.mode != found.mode:
            why = f"{found.name} does {found.mode}, not {asked.mode}"
            raise RequestError(Problem("mode", why, f"use {found.mode}"))
        if found:
            filled = complete(_with_input(asked), found.abilities)
    refusals.raise_if_any()
    assert chosen is not None, "an engine that is found"
    assert found is not None, "and a model"
    assert filled is not None, "and a request"
    facts = found.facts
    workload = workload_of(
        filled,
        prompt_given="prompt" in request,
        text_rows=facts.text_rows if facts else None,
        guided=not (facts and facts.embedded_guidance),
    )
    return Question(model=found, workload=workload, engine=chosen, gpu=gpu)


def _with_input(request: GenerationRequest) -> GenerationRequest:
    """No file is opened for advice, so one that the mode needs may be left out."""
    field = INPUTS.get(request.mode or "")
    if field is None or getattr(request, field) is not None:
        return request
    return request.model_copy(update={field: Path(f"input-{field}")})


def _count_problems(counts: Sequence[int], nodes: int, layout: Layout | None) -> list[Problem]:
    problems = [
        Problem("gpus", f"--gpus {count} is no number of devices", f"use 1 to {MOST_GPUS}")
        for count in counts
        if not 1 <= count <= MOST_GPUS
    ]
    if nodes < 1:
        return [*problems, Problem("nodes", f"--nodes {nodes} is no number of machines", "use 1 or more")]
    for count in counts or ([layout.world_size] if layout else [1]):
        if count >= 1 and count % nodes:
            why = f"{count} devices are not evenly on {nodes} machines"
            problems.append(Problem("nodes", why, f"use a multiple of {nodes}, or --nodes 1"))
    if layout and counts and layout.world_size > max(counts):
        problems += layout.world_problems(max(counts))
    return problems
