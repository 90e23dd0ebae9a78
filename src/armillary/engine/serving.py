"""What the ranks of a server run: load once, then one order after another from the engine process.

The first rank holds the line (`wire.py`) and tells the others. Ranks that have nothing to do meet every
second, so that each heartbeat goes on. After every denoising step, and every latent frame that all decode,
they agree whether to stop, so that all stop at the same one.

From the engine process: {"run": id, "request": JSON, "output": path}, {"stop": id}, {"end": true}.
To it, with "event" as loading, ready, step, done, stopped or failed: see `_Orders` and `_run`; and as raised,
with the first rank that did and its error, when the group ends by one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.engine.media import Media, WriteError, write_media
from armillary.engine.pipeline import NotFiniteError
from armillary.engine.request import CompleteRequest
from armillary.engine.resident import Resident, mesh_of
from armillary.engine.torchrun import first_error
from armillary.engine.wire import Line, LineClosedError, Message
from armillary.errors import EngineError, Problem
from armillary.progress import progress_heard_by

if TYPE_CHECKING:
    from armillary.engine.worker import Rank
    from armillary.parallel.collectives import Group
    from armillary.parallel.mesh import Mesh

_TICK_SECONDS = 1.0
_REPORT_SECONDS = 0.2


class _StoppedError(Exception):
    """Raised on all ranks after the same step or latent frame."""


def serve_on_rank(payload: Mapping[str, Any], rank: Rank) -> None:
    """The task: `payload` is a job's, plus "socket", the path of the line, and "tick", the longest rest."""
    _log_as_events()
    mesh = mesh_of(payload)
    orders = _Orders(
        Path(payload["socket"]) if mesh.is_first else None, _control_group(mesh), payload["tick"]
    )
    try:
        _serve(payload, rank, mesh, orders)
    except LineClosedError as error:
        # nobody waits for what this rank computes
        raise EngineError(Problem("engine-gone", "the server's engine process has ended")) from error
    except Exception as error:
        number, raised = first_error(rank, error)
        with suppress(LineClosedError):
            orders.tell({"event": "raised", "rank": number, "error": raised.to_json()})
        raise


def _serve(payload: Mapping[str, Any], rank: Rank, mesh: Mesh, orders: _Orders) -> None:
    control = orders.control
    with progress_heard_by(orders.loading):
        resident = Resident.load(payload, CompleteRequest.from_json(payload["request"]), rank, mesh)
    rank.heartbeat.beat("computing")
    weights, memory = control.share(resident.weight_bytes), control.share(private_memory(rank))
    orders.tell({"event": "ready", "weights": weights, "memory": memory})
    while "end" not in (order := orders.following()):
        if "run" in order:
            _run(order, resident, rank, orders)
        rank.heartbeat.beat("computing")


def _run(order: Message, resident: Resident, rank: Rank, orders: _Orders) -> None:
    started = time.monotonic()
    request = CompleteRequest.from_json(order["request"])
    about = {"job": order["run"], "steps": request.num_inference_steps}

    def on_step(i: int) -> None:
        about["step"] = i + 1
        orders.tell({"event": "step", **about})
        stop_if_asked()

    def stop_if_asked() -> None:
        if orders.is_stopped(order["run"]):
            raise _StoppedError

    failures = []

    def write(media: Media) -> None:
        try:
            write_media(media, order["output"])
        except WriteError as error:  # the disk is full, say: the next request may have more luck
            failures.append(str(error).replace(order["output"], "the result"))  # the path is not the client's

    try:
        made = resident.run(request, rank, on_step, write, stop_if_asked)
    except _StoppedError:
        orders.tell({"event": "stopped", **about})
        return
    except NotFiniteError as error:  # found by all that decode, so none waits for another
        orders.tell({"event": "failed", **about, "problem": str(error)})
        return
    if failures:
        orders.tell({"event": "failed", **about, "problem": failures[0]})
        return
    times = {"first_call": made.first_call, "run_seconds": time.monotonic() - started}
    orders.tell({"event": "done", **about, "step_seconds": made.seconds_per_step, **times})


class _Orders:
    """The first rank's line, shared with the others."""

    def __init__(self, socket: Path | None, control: Group, tick: float) -> None:
        self._line = Line.to(socket) if socket else None
        self.control = control
        self._tick = min(tick, _TICK_SECONDS)
        self._reported = 0.0

    def tell(self, message: Message) -> None:
        """Said by the first rank."""
        if self._line:
            self._line.send(message)

    def loading(self, done: int, total: int) -> None:
        """How many bytes of weights this rank has read, now and then."""
        if time.monotonic() - self._reported > _REPORT_SECONDS or done == total:
            self._reported = time.monotonic()
            self.tell({"event": "loading", "done": done, "total": total})

    def following(self) -> Message:
        """The next order, the same on all ranks; {} when there was none for a while."""
        received = self._line.receive(self._tick) if self._line else None
        order: Message = self.control.share(received)[0] or {}
        return order

    def is_stopped(self, job: str) -> bool:
        """Whether the job is to stop here: the same answer on all ranks."""
        wanted = False
        if self._line:
            while (order := self._line.receive(0)) is not None:
                wanted |= order.get("stop") == job
        return any(self.control.share(wanted))


def _log_as_events() -> None:
    """What libraries log is an event of the server's log, a JSON object a line, with two things left out."""
    import logging
    import warnings

    from diffusers.modular_pipelines import modular_pipeline
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    from armillary.serve.logs import log_libraries

    log_libraries()
    for library in (of_diffusers, of_transformers):
        library.disable_default_handler()
        library.enable_propagation()
    # what changes in later versions of a library does not concern who runs this one
    for kind in (FutureWarning, DeprecationWarning):
        warnings.simplefilter("ignore", kind)

    def no_exception(record: logging.LogRecord) -> bool:
        """diffusers logs every exception that passes its blocks, also a stop; whoever catches it tells it."""
        return sys.exc_info()[0] is None

    modular_pipeline.logger.addFilter(no_exception)


def _control_group(mesh: Mesh) -> Group:
    """All ranks, joined over the CPU: a rank that waits for work in NCCL would keep its GPU busy."""
    from dataclasses import replace

    import torch.distributed as dist

    if mesh.everyone.size == 1:
        return mesh.everyone
    over_cpu: Any = dist.new_group(list(mesh.everyone.members), backend="gloo")
    return replace(mesh.everyone, axis="control", process_group=over_cpu)


def private_memory(rank: Rank) -> int:
    """Bytes that this rank has on its device; on the CPU, of its process alone."""
    import torch

    if rank.device.type == "cuda":
        return int(torch.cuda.memory_allocated(rank.device))
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 if "RssAnon:" in status else 0
