"""From an HTTP request to a stored job, and from a job to the client that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from armillary.engine.prepare import row_problems
from armillary.engine.request import CompleteRequest, GenerationRequest, complete
from armillary.errors import LayoutError, RequestError
from armillary.layout import Layout
from armillary.serve import protocol
from armillary.serve.bodies import Body, read_body
from armillary.serve.desk import Desk
from armillary.serve.jobs import Job, NewJob
from armillary.serve.media_access import probe
from armillary.serve.refusals import FieldProblem, RefusedError

T = TypeVar("T")
_PROBES = asyncio.Semaphore(2)
"""Files decoded at a time: a small one may unpack into hundreds of megabytes."""
_GONE = 499
"""nginx's number for a client that went away; nobody reads the answer."""


async def read(request: Request, desk: Desk, file_field: str | None) -> Body:
    settings = desk.settings
    return await read_body(request, settings.uploads, file_field, settings.max_upload_bytes)


def completed(asked: GenerationRequest, desk: Desk) -> CompleteRequest:
    """The request with everything filled in. Raises RequestError, LayoutError."""
    settings = desk.settings
    if asked.seed is None and settings.seed is not None:
        asked = asked.model_copy(update={"seed": settings.seed})
    filled = complete(asked, settings.abilities)
    if settings.max_pixels is not None and filled.width * filled.height > settings.max_pixels:
        size = f"{filled.width}x{filled.height}"
        why = f"size {size} has more pixels than this server makes, {settings.max_pixels}"
        raise RequestError(FieldProblem("max-pixels", why, "ask for a smaller size", "size"))
    layout = Layout(**settings.payload["layout"])
    if problems := row_problems(layout, filled, settings.abilities, settings.patch):
        raise LayoutError(problems)
    return filled


async def accept_video(request: Request, desk: Desk, *, attached: bool) -> Job:
    await run_in_threadpool(desk.store.check_room, desk.settings.max_queue)  # before a large file has come
    body = await read(request, desk, "input_reference")
    try:
        upload = body.files.get("input_reference")
        async with _PROBES:
            kind = await run_in_threadpool(probe, upload, "input_reference") if upload else None
        named = (kind, str(upload.path)) if kind and upload else None
        asked = protocol.video_request(
            body.fields, named, desk.settings.names, desk.settings.abilities.spatial_grid
        )
        job = NewJob(
            kind="video",
            attached=attached,
            request=completed(asked, desk).to_json(),
            model=body.fields.get("model") or desk.settings.names[0],
            request_id=request.state.request_id,
            suffix=".mp4",
            upload=upload.path if upload else None,
        )
        return (await run_in_threadpool(desk.accept, [job], body.fields.get("user")))[0]
    except BaseException:  # also where the client goes away: nothing was stored
        body.discard()
        raise


async def finished(desk: Desk, jobs: Sequence[Job], request: Request) -> list[Job]:
    """The jobs once all are completed; they are cancelled if the client leaves or one fails.

    Raises RefusedError with what went wrong.
    """
    try:
        return await _unless_gone(asyncio.gather(*(_completed(desk, job) for job in jobs)), request)
    except BaseException:
        for job in jobs:
            await asyncio.shield(run_in_threadpool(desk.remove, job.id))
        raise


async def _completed(desk: Desk, job: Job) -> Job:
    ended = await desk.until_ended(job)
    if ended is not None and ended.status == "completed":
        return ended
    message, code = (
        (ended.error_message, ended.error_code) if ended else ("the job was cancelled", "cancelled")
    )
    # it was tried as often as it may be; OpenAI's client would send it twice more
    raise RefusedError(500, message or "the job failed", code=code, headers={"x-should-retry": "false"})


async def _unless_gone(waiting: Awaitable[T], request: Request) -> T:
    """What `waiting` gives. Raises RefusedError as soon as the client closes its connection."""
    gone = asyncio.ensure_future(_until_gone(request))
    work = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise RefusedError(_GONE, "the client went away", code="disconnect")
        return await work
    finally:
        for task in (gone, work):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
