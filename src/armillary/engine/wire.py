"""The line between the first rank and the process that gives it work: JSON messages over a local socket.

A Unix socket in the run folder, which only the user can enter. One message a line; `dict` in, `dict` out.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Message = dict[str, Any]

_CHUNK = 65536


class LineClosedError(Exception):
    """The process at the other end has ended or closed the line."""


class Line:
    """One end of the line; not to be shared between threads."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._partial = b""
        self._arrived: deque[Message] = deque()

    @classmethod
    def to(cls, path: Path) -> Line:
        """Connect to the socket that `listen` made."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(str(path))
        return cls(end)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises LineClosedError where nobody is left to read it."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise LineClosedError(str(error)) from error

    def receive(self, timeout: float) -> Message | None:
        """The next message, waited for at most `timeout` seconds, or None.

        Raises LineClosedError once the other end is closed and everything it sent has been received.
        """
        while not self._arrived:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            self._read()
        return self._arrived.popleft()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError as error:
            raise LineClosedError(str(error)) from error
        if not chunk:
            raise LineClosedError("the other end is closed")
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        self._arrived.extend(map(json.loads, whole))


def listen(path: Path) -> socket.socket:
    """A socket at `path` for one `Line.to`; in place of one that an earlier process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    return listener
