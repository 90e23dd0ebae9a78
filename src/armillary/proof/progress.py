"""The calls of a model, as heartbeats and as a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from armillary.engine.heartbeat import Heartbeat
from armillary.progress import progress_bar


@contextmanager
def counted(
    calls: int, label: str, heartbeat: Heartbeat, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """What is to be called before each of `calls` calls of the model; see `watched`."""
    heartbeat.beat("computing", step=0, steps=calls)
    with progress_bar(label, calls, unit="steps", shown=shown) as advance:

        def on_call(number: int) -> None:
            heartbeat.beat(step=min(number, calls))
            advance(min(number, 1))  # one more is over, except before the first

        yield on_call
        advance(1)
