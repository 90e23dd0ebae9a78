"""From a checked command line to a running server: the settings, and the processes that take over.

On one machine this process becomes the supervisor, so that what the checks have imported is gone. Under
torchrun it is a rank and stays one; the first rank starts the supervisor beside itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.abilities import abilities
from armillary.engine.eviction import is_open, usual_video, with_eviction
from armillary.engine.prepare import Job, latent_patch, prepare
from armillary.errors import EngineError, Problem, RequestError
from armillary.residency import Residency
from armillary.serve.settings import LINE, Choices, Settings, is_loopback

if TYPE_CHECKING:
    from armillary.engine.worker import Rank

_LONGEST_SOCKET = 103
"""Bytes of its path, where the shortest system ends them."""
_WORD_SECONDS = 3.0


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
    problems: Iterable[Problem] = (),
) -> None:
    """Check everything, then serve until a signal. Does not return on one machine.

    `problems` are those of the command line that were found before. Raises ArmillaryError with them and every
    other of the command line, the checkpoint, the layout and the machine, before a weight is read, a process
    is started or a port is opened; EngineError under torchrun when the ranks' work ends.
    """
    # a picture, because every checkpoint makes one; only its form is used
    still = {"prompt": "start", "mode": "text-to-image", "seed": wanted.seed}
    job = prepare(
        still,
        checkpoint,
        layout,
        dtype=dtype,
        residency=residency,
        overrides=overrides,
        here=True,
        problems=[*problems, *_door_problems(wanted)],
    )
    if is_open(residency):
        video = usual_video(job.request, abilities(job.folder))
        home = with_eviction(job.residency, job.folder, video, job.layout, job.dtype)
        job = replace(job, residency=home)
    from armillary.engine.torchrun import joined_group

    rank = joined_group()
    settings = _settings(checkpoint, job, wanted)
    if rank is not None and rank.rank != 0:
        _run_as_rank(settings, rank)
        return
    run = _run_folder()
    settings = replace(settings, run=run, external_ranks=rank is not None)
    try:
        settings.write()
        command = [sys.executable, "-m", "armillary.serve.supervisor", str(run)]
        if rank is not None:
            _serve_as_first_rank(settings, rank, command)
            return
        sys.stdout.flush()
        os.execv(sys.executable, command)
    finally:
        shutil.rmtree(run, ignore_errors=True)  # the supervisor removes it too, and this is not reached then


def _run_folder() -> Path:
    """A new folder in which a socket can be."""
    run = Path(tempfile.mkdtemp(prefix="armillary-serve-"))
    if len(os.fsencode(run / LINE)) > _LONGEST_SOCKET:
        run.rmdir()
        why = f"the path of the folder for temporary files, {run.parent}, is too long for a socket in it"
        raise RequestError(Problem("tmpdir", why, "set TMPDIR to a shorter one"))
    return run


def _door_problems(wanted: Wanted) -> Iterator[Problem]:
    """Whoever can reach the server can use it: beyond this machine that takes a key, or a decision."""
    if wanted.api_key and wanted.no_auth:
        yield Problem("bind", "--no-auth and an API key contradict each other", "give one of them")
    if not (wanted.api_key or wanted.no_auth or is_loopback(wanted.host)):
        why = f"--host {wanted.host} is reached from other machines, and there is no API key"
        yield Problem("bind", why, "give --api-key or ARMILLARY_API_KEY, or say --no-auth")


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
        run=Path(),  # made when everything is settled
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


def _serve_as_first_rank(settings: Settings, rank: Rank, command: Sequence[str]) -> None:
    """The rank that has the server beside it. Both end together."""
    # in a session of its own: torchrun's signals, which go to process groups, are this rank's to pass on
    supervisor = subprocess.Popen(
        [*command, str(os.getpid())], stdin=subprocess.DEVNULL, start_new_session=True
    )

    def end_soon(*_: object) -> None:
        # torchrun sends it to whoever is left of a group, and what ended the group is to be told first
        threading.Timer(_WORD_SECONDS, supervisor.terminate).start()

    signal.signal(signal.SIGTERM, end_soon)
    try:
        _await_line(settings, supervisor)
        _run_as_rank(settings, rank)
    finally:
        # an engine process that was told why the ranks end does so by itself
        try:
            supervisor.wait(_WORD_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.terminate()
            supervisor.wait()


def _run_as_rank(settings: Settings, rank: Rank) -> None:
    """Be one of torchrun's ranks. When it ends, torchrun ends the others, and starts all again if it may."""
    from armillary.engine.torchrun import run_as_rank

    payload = {**settings.payload, "socket": str(settings.line), "tick": settings.step_timeout / 4}
    timeouts = {"step_timeout": settings.step_timeout, "init_timeout": settings.init_timeout}
    run_as_rank(rank, "armillary.engine.serving:serve_on_rank", payload, **timeouts)


def _await_line(settings: Settings, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until the engine process listens for the first rank."""
    import time

    deadline = time.monotonic() + 60
    while not settings.line.exists():
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise EngineError(Problem("supervisor", "the server's own processes did not start"))
        time.sleep(0.05)
