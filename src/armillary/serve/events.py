"""Server-sent events of one job: where it stands whenever that changes, and how it ended."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from armillary.serve.desk import Desk
from armillary.serve.jobs import Job
from armillary.serve.shapes import Video

_SILENCE_SECONDS = 15.0
"""After which a comment keeps proxies from closing the connection."""
_NAMES = {"queued": "queued", "in_progress": "progress", "completed": "completed", "failed": "failed"}


async def event_stream(desk: Desk, job: Job) -> AsyncIterator[str]:
    """`event:` queued, progress, completed, failed or cancelled; `data:` the video object as JSON."""
    current: Job | None = job
    told, told_at = "", time.monotonic()
    while current is not None and current.status != "cancelled":
        video = await run_in_threadpool(desk.video, current)
        if (place := _place(video)) != told:
            told, told_at = place, time.monotonic()
            yield f"event: {_NAMES[video.status]}\ndata: {video.model_dump_json()}\n\n"
        elif time.monotonic() - told_at > _SILENCE_SECONDS:
            told_at = time.monotonic()
            yield ": still here\n\n"
        if video.status in ("completed", "failed"):
            return
        current = await desk.news(job.id)
    yield f'event: cancelled\ndata: {{"id": "{job.id}"}}\n\n'


def _place(video: Video) -> str:
    """What makes an event: the estimate alone, which changes all the time, does not."""
    return f"{video.status} {video.queue_position} {video.step}"
