"""The link between the HTTP process and the engine process: small messages that hurry things along.

Two ends of a pair of datagram sockets. The supervisor keeps both open, so that either process may end and be
started again at any time, and nothing listens anywhere. A message is a hint: it may be lost, and whoever
misses it finds the same in the job store a moment later.

To the engine: {"wake": true}, {"stop": job}, {"ask": true}. From it: {"state": ...} with what /health says,
now and then anew, and {"job": id, "status": ..., "step": i, "steps": n}.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

_LONGEST = 65536


class Link:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end

    @classmethod
    def inherited(cls, fileno: int) -> Link:
        """The end that the supervisor passed to this process."""
        return cls(socket.socket(fileno=fileno))

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Never waits: while nobody reads, messages are lost once the buffer is full."""
        with suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def receive(self) -> Iterator[dict[str, Any]]:
        """What has arrived."""
        with suppress(BlockingIOError):
            while True:
                yield json.loads(self._socket.recv(_LONGEST))

    def close(self) -> None:
        self._socket.close()
