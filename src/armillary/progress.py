"""One progress bar for everything that takes long: on standard error, on a terminal, on the first rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Advance = Callable[[int], None]
"""Called with how much more is done."""
Listener = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def progress_heard_by(listener: Listener) -> Iterator[None]:
    """Within the block, `listener` hears of what bars would show, in place of a terminal."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_bar(
    label: str, total: int, *, unit: Literal["bytes", "steps"], shown: bool = True
) -> Iterator[Advance]:
    """A bar of `total` bytes or steps; bytes show a rate, steps the seconds each takes and the time left."""
    if listener := _listener.get():
        done = 0

        def tell(more: int) -> None:
            nonlocal done
            done += more
            listener(done, total)

        yield tell
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        (DownloadColumn(), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn("{task.fields[each]}"), TimeRemainingColumn())
    )
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console) as progress:
        task = progress.add_task(label, total=total, each="")

        def advance(more: int) -> None:
            progress.update(task, advance=more)
            done = progress.tasks[task]
            if unit == "steps" and done.completed:
                progress.update(task, each=f"{(done.elapsed or 0.0) / done.completed:.2f} s/step")

        yield advance
