"""From a checked command line to a running server: the settings, and the processes that take over.

On one machine this process becomes the supervisor, so that what the checks have imported is gone. Under
torchrun it is a rank and stays one; the first rank starts the supervisor beside itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.abilities import abilities
from armillary.engine.eviction import is_open, usual_video, with_eviction
from armillary.engine.prepare import Job, latent_patch, prepare
from armillary.errors import EngineError, Problem, RequestError
from armillary.residency import Residency
from armillary.serve.settings import Choices, Settings, is_loopback

if TYPE_CHECKING:
    from armillary.engine.worker import Rank


@dataclass(frozen=True, kw_only=True)
class Wanted(Choices):
    """The choices as they were typed: `names` may be none, and the door is still to be judged."""

    no_auth: bool


def serve(
    checkpoint: str,
    layout: Mapping[str, Any],
    wanted: Wanted,
    *,
    dtype: str | None = None,
    residency: Residency | Mapping[str, Any] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> None:
    """Check everything, then serve until a signal. Does not return on one machine.

    Raises ArmillaryError with every problem of the command line, the checkpoint, the layout and the machine,
    before a weight is read, a process is started or a port is opened; EngineError under torchrun when the
    ranks' work ends.
    """
    refuse_open_door(wanted)
    # a picture, because every checkpoint makes one; only its form is used
    still = {"prompt": "start", "mode": "text-to-image"}
    job = prepare(still, checkpoint, layout, dtype=dtype, residency=residency, overrides=overrides, here=True)
    if is_open(residency):
        video = usual_video(job.request, abilities(job.folder))
        home = with_eviction(job.residency, job.folder, video, job.layout, job.dtype)
        job = replace(job, residency=home)
    settings = _settings(checkpoint, job, wanted)
    from armillary.engine.torchrun import joined_group

    rank = joined_group()
    if rank is not None:
        _serve_as_rank(settings, rank)
        return
    settings.write()
    command = [sys.executable, "-m", "armillary.serve.supervisor", str(settings.run)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def refuse_open_door(wanted: Wanted) -> None:
    """Whoever can reach the server can use it: beyond this machine that takes a key, or a decision."""
    if wanted.api_key and wanted.no_auth:
        problem = Problem("bind", "--no-auth and an API key contradict each other", "give one of them")
        raise RequestError(problem)
    if not (wanted.api_key or wanted.no_auth or is_loopback(wanted.host)):
        why = f"--host {wanted.host} is reached from other machines, and there is no API key"
        fix = "give --api-key or ARMILLARY_API_KEY, or say --no-auth"
        raise RequestError(Problem("bind", why, fix))


def _settings(checkpoint: str, job: Job, wanted: Wanted) -> Settings:
    able = abilities(job.folder)
    # every component that some request may need is loaded once
    everything = replace(job.request, sound=able.sound and not (able.edge or able.distilled))
    payload = {**replace(job, request=everything).payload(Path("unused")), "layout": job.layout.degrees}
    chosen: dict[str, Any] = {field.name: getattr(wanted, field.name) for field in fields(Choices)}
    chosen["names"] = wanted.names or tuple(dict.fromkeys((checkpoint, able.name)))
    return Settings(
        **chosen,
        checkpoint=checkpoint,
        run=Path(tempfile.mkdtemp(prefix="armillary-serve-")),
        payload=payload,
        world_size=job.layout.world_size,
        predicted_bytes=_predicted(job),
        abilities=able,
        patch=latent_patch(job.resolved.skeleton),
    )


def _predicted(job: Job) -> tuple[int, ...]:
    """Bytes of weights by rank: the shards of everything but what generation never calls."""
    from armillary.models.cosmos3 import UNUSED_BY_GENERATION

    total = [job.resolved.bytes_on(rank, leave_out=UNUSED_BY_GENERATION) for rank in range(job.layout.tp)]
    ranks = range(job.layout.world_size)
    return tuple(total[job.layout.coordinate(rank)["tp"]] for rank in ranks)


# --------------------------------------------------------------------------------------------- torchrun


def _serve_as_rank(settings: Settings, rank: Rank) -> None:
    """Be one of torchrun's ranks. When it ends, torchrun ends the others, and starts all again if it may."""
    from armillary.engine.torchrun import run_as_rank

    supervisor = None
    if rank.rank == 0:
        settings = replace(settings, external_ranks=True)
        settings.write()
        command = [sys.executable, "-m", "armillary.serve.supervisor", str(settings.run), str(os.getpid())]
        supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        _await_line(settings, supervisor)
    payload = {**settings.payload, "socket": str(settings.line), "tick": settings.step_timeout / 4}
    timeouts = {"step_timeout": settings.step_timeout, "init_timeout": settings.init_timeout}
    try:
        run_as_rank(rank, "armillary.engine.serving:serve_on_rank", payload, **timeouts)
    finally:
        if supervisor is not None:
            supervisor.terminate()
            supervisor.wait()


def _await_line(settings: Settings, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until the engine process listens for the first rank."""
    import time

    deadline = time.monotonic() + 60
    while not settings.line.exists():
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise EngineError(Problem("supervisor", "the server's own processes did not start"))
        time.sleep(0.05)
