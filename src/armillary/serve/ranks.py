"""One life of the group of ranks, in a thread of the engine process, and the line to the first of them."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from typing import Any

from armillary.engine.failure import RaisedError, told_by_ranks
from armillary.engine.wire import Line, LineClosedError, Message, listen
from armillary.errors import ArmillaryError, EngineError, Problem
from armillary.serve.settings import Settings

_TASK = "armillary.engine.serving:serve_on_rank"
_PATIENCE_SECONDS = 0.5


class Ranks:
    """The ranks from their start until they have ended; `failure` then says why."""

    def __init__(self, settings: Settings) -> None:
        self.failure: ArmillaryError | None = None
        self._settings = settings
        self._first_error: ArmillaryError | None = None
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="armillary-group")
        self._listener = listen(settings.line)
        self._line: Line | None = None
        self._thread.start()

    def _run(self) -> None:
        settings = self._settings
        payload = {**settings.payload, "socket": str(settings.line), "tick": settings.step_timeout / 4}
        try:
            if settings.external_ranks:
                self._cancelled.wait()
                if self._first_error:
                    raise self._first_error
            else:
                from armillary.engine.launch import run_ranks

                run_ranks(
                    _TASK,
                    payload,
                    settings.world_size,
                    step_timeout=settings.step_timeout,
                    init_timeout=settings.init_timeout,
                    cancelled=self._cancelled,
                )
            self.failure = EngineError(Problem("ranks-ended", "the ranks ended"))
        except ArmillaryError as error:
            self.failure = error
        except Exception as error:  # a fault of ours must not leave the queue waiting for ever
            self.failure = EngineError(Problem("ranks-ended", f"{type(error).__name__}: {error}"))

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def waits_on(self) -> list[Any]:
        return [self._line or self._listener]

    def messages(self) -> Iterator[Message]:
        """What the first rank has said. A line that closes ends the iteration; the thread tells why."""
        if self._line is None:
            if not select.select([self._listener], [], [], 0)[0]:
                return
            self._line = Line(self._listener.accept()[0])
        try:
            while (message := self._line.receive(0)) is not None:
                if message["event"] == "raised":
                    self._told(message)
                else:
                    yield message
        except LineClosedError:
            if self._settings.external_ranks:
                self._cancelled.set()
            self._thread.join(
                _PATIENCE_SECONDS
            )  # a closed line is readable: do not spin while the group is ended

    def _told(self, message: Message) -> None:
        """The ranks end by an error; of ranks that this process started, the group knows more."""
        if self._settings.external_ranks:
            self._first_error = told_by_ranks(message["rank"], RaisedError.from_json(message["error"]))
            self._cancelled.set()
            self._thread.join()

    def send(self, message: Message) -> None:
        try:
            if self._line is not None:
                self._line.send(message)
        except LineClosedError:
            pass  # the thread tells why

    def end(self) -> None:
        self._cancelled.set()
        self._thread.join()
        self._listener.close()
        if self._line is not None:
            self._line.close()
