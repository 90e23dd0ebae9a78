"""An answer as a JSON document, and as tables with bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from armillary.advisor.advice import GB, describe
from armillary.advisor.ask import Answer
from armillary.advisor.commands import Command, commands_for
from armillary.advisor.option import Option, Question
from armillary.layout import Layout

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SHOWN = 12
"""Rows of the table; JSON has all."""

_BAR = 20
_PARTS = ("linear", "attention", "collectives", "weights on the way", "launch", "prompt", "decode", "request")


def as_json(answer: Answer) -> dict[str, Any]:
    """The document that `--json` prints; bytes and seconds."""
    question = answer.question
    return {
        "model": question.model.name,
        "engine": question.engine.name,
        "gpu": {
            "name": question.gpu.name,
            "memory_bytes": question.gpu.memory_bytes,
            "source": question.gpu.source,
        },
        "gpus": list(answer.counts),
        "workload": _workload(question),
        "layouts": [_option(answer, option) for option in answer.options],
        "refused": [
            {"layout": refused.layout.degrees, "problems": [str(problem) for problem in refused.problems]}
            for refused in answer.refused
        ],
        "smallest": _smallest(answer),
        "doublings": [
            {"gpus": count, "layout": option.layout.degrees, "residency": option.residency_name}
            | {"seconds": round(option.latency.seconds, 3)}
            for count, option in answer.doublings.items()
        ],
        "advice": list(answer.advice),
    }


def _workload(question: Question) -> dict[str, Any]:
    work = question.workload
    return {
        "mode": work.mode,
        "size": f"{work.width}x{work.height}",
        "num_frames": work.frames,
        "num_inference_steps": work.steps,
        "guided_steps": work.guided_steps,
        "prompt_tokens": work.prompt_tokens,
        "sound": work.sound,
        "dtype": question.model.dtype,
    }


def _option(answer: Answer, option: Option) -> dict[str, Any]:
    commands = commands_for(answer.question, option, answer.given)
    return {
        "layout": option.layout.degrees,
        "residency": option.residency_name,
        "fits": option.fits,
        "seconds": round(option.latency.seconds, 3),
        "seconds_per_step": round(option.latency.seconds_per_step, 5),
        "peak_bytes_per_rank": option.memory.peak,
        "peak_phase": option.memory.peak_phase,
        "host_bytes_per_rank": option.memory.host,
        "weight_bytes_per_rank": option.weight_bytes,
        "breakdown": {
            "seconds": {name: round(value, 4) for name, value in option.latency.parts.items()},
            "bytes": option.memory.phases,
        },
        "commands": {name: command.text for name, command in commands.items() if command.text},
        "no_command": {name: command.reason for name, command in commands.items() if not command.text},
    }


def _smallest(answer: Answer) -> dict[str, Any]:
    def one(option: Option | None) -> dict[str, Any] | None:
        if option is None:
            return None
        return {
            "gpus": option.layout.world_size,
            "layout": option.layout.degrees,
            "residency": option.residency_name,
            "seconds": round(option.latency.seconds, 3),
            "peak_bytes_per_rank": option.memory.peak,
            "host_bytes_per_rank": option.memory.host,
        }

    found = [option for option in answer.smallest.values() if option]
    fewest = min(found, key=lambda option: option.layout.world_size, default=None)
    return {
        **(one(fewest) or {"gpus": None}),
        "gpu": answer.question.gpu.name,
        "by_residency": {name: one(option) for name, option in answer.smallest.items()},
    }


def show(answer: Answer, console: Console) -> None:
    """Print the tables, the advice and the commands of the best option."""
    for part in _rendered(answer):
        console.print(part)


def _rendered(answer: Answer) -> Iterator[RenderableType]:
    question = answer.question
    counts = " to ".join(str(count) for count in sorted({min(answer.counts), max(answer.counts)}))
    yield f"[bold]{question.model.name}[/]  {question.workload}"
    yield f"{counts} x {question.gpu.name}, {question.engine.title}, {question.model.dtype}\n"
    if answer.options:
        yield _table(answer)
    for refused in _grouped(answer):
        yield f"[dim]not possible: {refused}[/]"
    yield _smallest_line(answer)
    yield "\n[bold]Advice[/]"
    for line in answer.advice:
        yield f"  {line}"
    shown = answer.best or next(iter(answer.options), None)
    if shown:
        yield f"\n[bold]Commands[/] for {describe(shown)}"
        for name, command in commands_for(question, shown, answer.given).items():
            yield _command(name, command)


def _table(answer: Answer) -> RenderableType:
    from rich.table import Table

    limit = answer.question.gpu.memory_bytes
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("layout", "weights", ">s", ">s/step", f"peak of {limit / GB:.1f} GB a rank", ">host GB"):
        right = header.startswith(">")
        table.add_column(header.lstrip(">"), justify="right" if right else "left", no_wrap=True)
    table.add_column("where the time goes")
    for option in answer.options[:SHOWN]:
        table.add_row(
            str(option.layout),
            option.residency_name,
            f"{option.latency.seconds:.1f}",
            f"{option.latency.seconds_per_step:.2f}",
            _bar(option, limit),
            f"{option.memory.host / GB:.0f}" if option.memory.host else "",
            _split(option),
        )
    if len(answer.options) > SHOWN:
        table.caption = f"and {len(answer.options) - SHOWN} more; --json has all"
    return table


def _bar(option: Option, limit: int) -> str:
    share = option.memory.peak / limit
    filled = min(round(share * _BAR), _BAR)
    colour = "green" if option.fits and share < 0.9 else "yellow" if option.fits else "red"
    text = f"{option.memory.peak / GB:6.1f} {option.memory.peak_phase}"
    return f"[{colour}]{'█' * filled}[/]{'░' * (_BAR - filled)} {text}"


def _split(option: Option) -> str:
    """The parts that take most of the time, in percent."""
    parts = {name: option.latency.parts[name] / option.latency.seconds for name in _PARTS}
    largest = sorted(parts, key=lambda name: -parts[name])[:4]
    return ", ".join(f"{name} {100 * parts[name]:.0f} %" for name in largest if parts[name] >= 0.01)


def _grouped(answer: Answer) -> Iterator[str]:
    """Each reason once, with the layouts that it refuses."""
    by_reason: dict[str, list[Layout]] = {}
    for refused in answer.refused:
        by_reason.setdefault("; ".join(map(str, refused.problems)), []).append(refused.layout)
    for reason, layouts in by_reason.items():
        more = f" and {len(layouts) - 1} more" if len(layouts) > 1 else ""
        yield f"{layouts[0]}{more}: {reason}"


def _smallest_line(answer: Answer) -> str:
    counts = {name: option.layout.world_size if option else None for name, option in answer.smallest.items()}
    told = ", ".join(f"{count or 'more than 64'} ({name})" for name, count in counts.items())
    return f"\nsmallest number of {answer.question.gpu.name}: {told}"


def _command(name: str, command: Command) -> str:
    from rich.markup import escape

    if not command.text:
        return f"  [dim]{name}: none, {escape(command.reason)}[/]"
    if "\n" in command.text:
        indented = escape(command.text).replace("\n", "\n      ")
        return f"  {name}:\n      {indented}"
    return f"  {name}: {escape(command.text)}"


def exit_code(answer: Answer) -> int:
    """0 where something fits, 3 where nothing does."""
    return 0 if answer.best else 3
