"""Calls of the job store that wait out a full disk or a locked database, instead of ending the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import OperationalError

from armillary.engine.heartbeat import current_heartbeat
from armillary.serve.logs import log

T = TypeVar("T")
_FIRST_REST = 0.25
_LONGEST_REST = 5.0


class StoppedError(Exception):
    """The process is to end, and the store still cannot be written."""


class Patience:
    """`patience(store.claim)` is `store.claim()`, tried until the store can do it.

    `tell` hears why it waits, and None when that is over. Raises StoppedError once `stop` is set.
    """

    def __init__(self, stop: threading.Event, tell: Callable[[str | None], None]) -> None:
        self._stop = stop
        self._tell = tell

    def __call__(self, ask: Callable[[], T]) -> T:
        rest = 0.0
        while True:
            current_heartbeat().beat()
            try:
                answer = ask()
            except OperationalError as error:
                if rest == 0:
                    log("store_waits", error=str(error.orig))
                    self._tell(str(error.orig))
                rest = min(max(2 * rest, _FIRST_REST), _LONGEST_REST)
                if self._stop.wait(rest):
                    raise StoppedError from error
            else:
                if rest > 0:
                    log("store_back")
                    self._tell(None)
                return answer
