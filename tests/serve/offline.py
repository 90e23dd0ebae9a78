"""The HTTP application without ranks, called in this process: jobs are stored and stay in the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from armillary.engine.abilities import Abilities
from armillary.serve.app import make_app
from armillary.serve.desk import Desk
from armillary.serve.jobs import JobStore
from armillary.serve.link import Link
from armillary.serve.settings import Settings


class Offline:
    """An application with its desk, and the link's other end in place of an engine process."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.settings = settings(folder, **changes)
        self.engine, self._here = Link.pair()
        self.desk = Desk(self.settings, JobStore(self.settings.database), self._here)
        self._app = make_app(self.desk)

    def close(self) -> None:
        self.desk.store.close()
        self.engine.close()
        self._here.close()

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)


def settings(folder: Path, **changes: Any) -> Settings:
    for name in ("uploads", "results"):
        (folder / name).mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "checkpoint": "here",
        "names": ("tiny",),
        "host": "127.0.0.1",
        "port": 8000,
        "data": folder,
        "run": folder,
        "api_key": None,
        "payload": {"layout": {}, "dtype": "float32"},
        "world_size": 1,
        "predicted_bytes": (1,),
        "abilities": Abilities(name="tiny", sound=True),
        "patch": 2,
        "seed": None,
        "step_timeout": 60.0,
        "init_timeout": 60.0,
        "max_attempts": 2,
        "max_queue": 2,
        "max_upload_bytes": 1 << 20,
        "result_max_age": 3600.0,
        "result_max_bytes": 1 << 30,
        "allowed_local_media_path": None,
    }
    return Settings(**{**fields, **changes})


@pytest.fixture
def offline_with(tmp_path: Path) -> Iterator[Callable[..., Offline]]:
    """Makes an application with some settings changed."""
    with ExitStack() as open_ones:

        def make(**changes: Any) -> Offline:
            made = Offline(tmp_path, **changes)
            open_ones.callback(made.close)
            return made

        yield make


@pytest.fixture
def offline(offline_with: Callable[..., Offline]) -> Offline:
    return offline_with()
