"""The HTTP process: `python -m armillary.serve.http_process RUN_FOLDER PARENT SLOT LINK LOCK PORT`.

SLOT is its place in the run's file of heartbeats. LINK, LOCK and PORT are open files that the supervisor
passed on: the link to the engine process, the lock on the data folder, and the listening socket.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from armillary.engine.heartbeat import Heartbeat
from armillary.engine.worker import die_with_parent
from armillary.serve.app import make_app
from armillary.serve.desk import Desk
from armillary.serve.jobs import JobStore
from armillary.serve.link import Link
from armillary.serve.logs import log_libraries
from armillary.serve.settings import Settings

_GOODBYE_SECONDS = 3
_KEPT_SECONDS = 75
"""Longer than the 60 s for which proxies commonly keep a connection that they may use again."""


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    run = Path(arguments[0])
    parent, slot, link, _, port = map(int, arguments[1:])
    die_with_parent(parent)
    log_libraries()
    settings = Settings.read(run)
    app = make_app(Desk(settings, JobStore(settings.database), Link.inherited(link)))
    heartbeat = Heartbeat.open(settings.beats, slot)

    async def beat() -> None:
        heartbeat.beat()

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
        timeout_keep_alive=_KEPT_SECONDS,
        callback_notify=beat,
        timeout_notify=1,
    )
    # not by `fd=`, which takes every socket for a Unix one: asyncio would leave Nagle's algorithm on, and
    # an answer on a kept connection would wait 40 ms for the client's delayed acknowledgement
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=port)])


if __name__ == "__main__":
    main(sys.argv[1:])
