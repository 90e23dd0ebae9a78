"""What `armillary serve` was started with, as its processes hand it to each other."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from armillary.engine.abilities import Abilities

LINE = "line"
SCHEMA = 1
"""Of the job store's table; a store says which one it was written with."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the command line decides, beside the model and how it is laid out."""

    names: tuple[str, ...]
    """By which clients may call the model; the first is shown."""
    host: str
    port: int
    data: Path
    """Jobs, uploads and results."""
    api_key: str | None
    seed: int | None
    """Of requests that name none; None: one is drawn for each."""
    step_timeout: float
    init_timeout: float
    max_attempts: int
    max_queue: int
    max_upload_bytes: int
    result_max_age: float
    """Seconds."""
    result_max_bytes: int
    allowed_local_media_path: str | None
    """Taken, and without effect until local media are served at all; the start-up table says so."""
    max_pixels: int | None = None
    """Of a picture or a frame that a request may ask for; None: what the model can make."""


@dataclass(frozen=True, kw_only=True)
class Settings(Choices):
    """Checked, complete, and written to the run folder, which only the user can enter."""

    checkpoint: str
    """As it was named on the command line."""
    run: Path
    """Folder of this run alone, gone after it."""
    payload: Mapping[str, Any]
    """What the ranks are told; see `engine.prepare.Job.payload`."""
    world_size: int
    predicted_bytes: tuple[int, ...]
    """Of weights, by rank."""
    abilities: Abilities
    patch: int
    """Latent rows and columns that make one token."""
    process_timeout: float = 60.0
    """Seconds after which one of the server's own two processes that does not move is killed."""
    external_ranks: bool = False
    """The ranks are torchrun's, and the first of them calls in by itself."""

    @property
    def database(self) -> Path:
        return self.data / "jobs.sqlite3"

    @property
    def uploads(self) -> Path:
        return self.data / "uploads"

    @property
    def results(self) -> Path:
        return self.data / "results"

    @property
    def line(self) -> Path:
        """The socket on which the first rank calls the engine process."""
        return self.run / LINE

    @property
    def beats(self) -> Path:
        """The heartbeats of the server's own two processes."""
        return self.run / "beats"

    @property
    def was_ready(self) -> Path:
        """There once all ranks have been ready: after that nothing that keeps them from starting is final."""
        return self.run / "was_ready"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def write(self) -> Path:
        path = self.run / "settings.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file, default=str)
        return path

    @classmethod
    def read(cls, run: Path) -> Self:
        fields = json.loads((run / "settings.json").read_text())
        return cls(
            **{
                **fields,
                "names": tuple(fields["names"]),
                "data": Path(fields["data"]),
                "run": Path(fields["run"]),
                "predicted_bytes": tuple(fields["predicted_bytes"]),
                "abilities": Abilities(**fields["abilities"]),
            }
        )
