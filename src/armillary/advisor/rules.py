"""What each engine can run: the problems of a layout or residency, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from armillary.advisor.engines import Engine
from armillary.advisor.option import Question
from armillary.errors import LayoutError, Problem
from armillary.layout import Layout
from armillary.residency import Residency


def layout_problems(question: Question, layout: Layout) -> list[Problem]:
    """Why the engine cannot run the model in this layout; nothing where it can."""
    problems = list(_of_any_engine(question, layout))
    if question.engine.name == "vllm-omni":
        problems += _vllm_omni(question, layout)
    return problems


def residency_problems(engine: Engine, residency: Residency) -> list[Problem]:
    """Where the engine cannot put weights."""
    problems = []
    if residency.evict and not engine.evicts:
        why = f"{engine.title} keeps what only the prompt needs on the device, or swaps it at every prompt"
        problems.append(Problem("residency", why, "leave --evict out"))
    if residency.offload and not engine.offloads:
        problems.append(Problem("residency", f"{engine.title} offloads no layers", "leave it out"))
    return problems


def _of_any_engine(question: Question, layout: Layout) -> Iterator[Problem]:
    engine, able = question.engine, question.model.abilities
    if layout.world_size > engine.most_ranks:
        most = "one device" if engine.most_ranks == 1 else f"at most {engine.most_ranks} devices"
        why = f"{engine.title} runs Cosmos 3 on {most}, not {layout.world_size}"
        yield Problem("engine-ranks", why, f"use {most}, or another engine")
        return
    if layout.cfg == 2 and not question.workload.guided:
        reason = "a distilled checkpoint has" if able.distilled else "guidance 1 has"
        why = f"cfg=2, but {reason} no second branch"
        yield Problem("cfg-branches", why, "use cfg=1, and the ranks for another axis")
    if question.model.facts:
        yield from _other_family(question, layout)
    if engine.own_split:
        return
    try:
        rank = question.rank(layout)
    except LayoutError as error:
        yield from error.problems
        return
    context, rows = layout.ring * layout.gather * layout.ulysses, rank.all_rows(question.workload)
    if context > rows:
        why = f"ring x gather x ulysses = {context} ranks share {rows} rows of the sequence"
        yield Problem("rows", why, f"use at most {rows}, or a larger picture")


def _other_family(question: Question, layout: Layout) -> Iterator[Problem]:
    """Of models that Armillary splits and does not generate with."""
    name = question.model.model_class
    if question.engine.name in ("vllm-omni", "pytorch"):
        why = f"what {question.engine.title} takes for {name} is not known"
        yield Problem("engine-model", why, "use --engine armillary or diffusers")
    if layout.world_size > layout.tp:
        yield Problem("tp-only", f"the advisor knows tp alone for {name}, not {layout}", "use tp")


def _vllm_omni(question: Question, layout: Layout) -> Iterator[Problem]:
    """Of vLLM-Omni 0.30 with Cosmos 3, which finds them out after starting its workers."""
    group = question.model.skeleton.heads[0]
    heads = group.key_value_heads
    if question.nodes(layout) > 1:
        why = f"vLLM-Omni runs on one machine, and {layout.world_size} devices are on several"
        yield Problem("vllm-nodes", why, "use one machine")
    if heads % layout.tp:
        why = f"tp={layout.tp} leaves no whole one of the {heads} K/V heads, and vLLM-Omni replicates none"
        yield Problem("vllm-heads", why, f"use a tp that divides {heads}")
    elif (heads // layout.tp) % layout.ulysses or (group.query_heads // layout.tp) % layout.ulysses:
        why = (
            f"tp x ulysses = {layout.tp * layout.ulysses} does not divide the {heads} K/V heads, as its "
            "strict mode wants"
        )
        yield Problem("vllm-heads", why, f"use tp x ulysses of at most {heads}")
    if layout.gather > 1:
        why = "vLLM-Omni's all-gather attention refuses causal layers, which Cosmos 3's prompt needs"
        yield Problem("vllm-gather", why, "use Ulysses")
    if layout.ring > 1:
        yield from _whole_rows(question, layout)


def _whole_rows(question: Question, layout: Layout) -> Iterator[Problem]:
    try:
        rows = question.rank(layout).all_rows(question.workload)
    except LayoutError:
        return
    if rows % (layout.ring * layout.ulysses):
        why = f"ring={layout.ring} does not divide {rows} rows, and vLLM-Omni's ring takes no padding"
        yield Problem("vllm-ring", why, "use Ulysses, or another size")
