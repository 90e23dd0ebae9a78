"""The HTTP application: every endpoint, in OpenAI's and vLLM-Omni's shapes."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from armillary.errors import RequestError
from armillary.serve import gate, intake, protocol, ranges, refusals, shapes
from armillary.serve.desk import Desk
from armillary.serve.events import event_stream
from armillary.serve.jobs import Job, NewJob
from armillary.serve.refusals import FieldProblem, RefusedError, error_body

_BEARER = HTTPBearer(auto_error=False, description="The key of --api-key.")  # the gate asks for it
_VIDEO: dict[str, Any] = {"content": {"video/mp4": {}}, "description": "The video."}
_NOT_HERE = {
    "POST /v1/videos/edits": "Armillary does not edit videos",
    "POST /v1/videos/extensions": "Armillary does not extend videos; send the clip as input_reference",
    "POST /v1/videos/characters": "Armillary has no characters",
    "GET /v1/videos/characters/{name}": "Armillary has no characters",
    "POST /v1/videos/{name}/remix": "Armillary does not remix videos",
    "POST /v1/images/edits": "Armillary does not edit pictures",
    "POST /v1/images/variations": "Armillary does not vary pictures",
}


def make_app(desk: Desk) -> FastAPI:
    """The application around a desk, which its lifespan starts and keeps."""
    app = FastAPIOffline(  # whose page needs nothing from the internet
        title="Armillary",
        description="Pictures and videos, as jobs on several devices.",
        lifespan=_lifespan,
        redoc_url=None,
        static_url=gate.PAGE_ASSETS,
        dependencies=[Depends(_refuse_unknown_query), *([Depends(_BEARER)] if desk.settings.api_key else [])],
    )
    app.state.desk = desk
    refusals.install(app)
    gate.install(app, desk.settings.api_key, desk.settings.host, desk.metrics)
    for add in (_add_images, _add_videos, _add_sync, _add_video, _add_operations, _add_not_here):
        add(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    await run_in_threadpool(desk.start)
    loop = asyncio.get_running_loop()
    loop.add_reader(desk.link_fileno, desk.hear)
    house = asyncio.create_task(desk.keep_house())
    yield
    house.cancel()
    loop.remove_reader(desk.link_fileno)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


_Desk = Annotated[Desk, Depends(_desk)]


def _refuse_unknown_query(request: Request) -> None:
    """As strict as bodies are; but what only asks for health, a load balancer, say, is always told."""
    if request.url.path == "/health":
        return
    known = [one.alias for one in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known or given.count(name) > 1:
            legal = f"once each of {', '.join(known)}" if known else "none here"
            why = f"the query has {name}; it may have {legal}"
            raise RefusedError(400, why, param=name, code="parameter")


def _errors(*more: int) -> dict[int | str, dict[str, Any]]:
    """The documented refusals of an endpoint."""
    return {status: {"model": shapes.ErrorBody} for status in (400, 401, 403, 503, *more)}


def _body(json_shape: type[shapes.VideoFields | shapes.ImageFields], form: bool = False) -> dict[str, Any]:
    """How `/docs` shows a body that is read by hand."""
    content = {"application/json": {"schema": _schema(json_shape)}}
    if form:
        content["multipart/form-data"] = {"schema": _schema(shapes.VideoForm)}
    return {"requestBody": {"required": True, "content": content}}


def _schema(shape: type[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = shape.model_json_schema()
    return schema


def _add_images(app: FastAPI) -> None:
    @app.post(
        "/v1/images/generations",
        response_model=shapes.Images,
        responses=_errors(413, 415, 429, 500, 507),
        openapi_extra=_body(shapes.ImageFields),
    )
    async def generate_images(request: Request, desk: _Desk) -> shapes.Images:
        """Pictures, as base64; answered when they are ready."""
        body = await intake.read(request, desk, None)
        asked, count, suffix = protocol.image_request(body.fields, desk.settings.names)
        filled = intake.completed(asked, desk)
        if count > desk.settings.max_queue:
            why = f"n is {count}, and {desk.settings.max_queue} jobs may wait (--max-queue)"
            raise RequestError(FieldProblem("n", why, "ask for fewer", "n"))
        wanted = [replace(filled, seed=filled.seed + number) for number in range(count)]
        new = [
            NewJob(
                kind="image",
                attached=True,
                request=one.to_json(),
                model=body.fields.get("model") or desk.settings.names[0],
                request_id=request.state.request_id,
                suffix=suffix,
            )
            for one in wanted
        ]
        jobs = await run_in_threadpool(desk.accept, new, body.fields.get("user"))
        made = await intake.finished(desk, jobs, request)
        data = await run_in_threadpool(lambda: [_image_data(job, desk) for job in made])
        return shapes.Images(
            created=int(time.time()),
            data=data,
            output_format="png" if suffix == ".png" else "jpeg",
            size=made[0].size,
        )


def _image_data(job: Job, desk: Desk) -> shapes.ImageData:
    assert job.output is not None, "a completed job has a result"
    encoded = base64.b64encode(Path(job.output).read_bytes()).decode()
    desk.remove(job.id)
    return shapes.ImageData(b64_json=encoded, seed=job.fields["seed"])


def _add_videos(app: FastAPI) -> None:
    @app.post(
        "/v1/videos",
        response_model=shapes.Video,
        responses=_errors(413, 415, 429, 507),
        openapi_extra=_body(shapes.VideoFields, form=True),
    )
    async def create_video(request: Request, desk: _Desk) -> shapes.Video:
        """Accept a job: it is stored before this answers. Follow it with GET, or its events."""
        job = await intake.accept_video(request, desk, attached=False)
        return await run_in_threadpool(desk.video, job)

    @app.get("/v1/videos", response_model=shapes.VideoPage, responses=_errors())
    def list_videos(
        desk: _Desk,
        after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
        limit: Annotated[int, Query(ge=0, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> shapes.VideoPage:
        """Jobs by the time of their acceptance."""
        try:
            jobs, more = desk.store.page(after=after, limit=limit, newest_first=order == "desc")
        except KeyError:
            why = f"after names no video that there is: {after}"
            raise RefusedError(400, why, param="after", code="after") from None
        data = [desk.video(job) for job in jobs]
        ends = (data[0].id, data[-1].id) if data else (None, None)
        return shapes.VideoPage(data=data, first_id=ends[0], last_id=ends[1], has_more=more)


def _add_sync(app: FastAPI) -> None:
    @app.post(
        "/v1/videos/sync",
        response_class=FileResponse,
        responses={
            200: {"content": {"video/mp4": {}}, "description": "The video."},
            **_errors(413, 415, 429, 500, 507),
        },
        openapi_extra=_body(shapes.VideoFields, form=True),
    )
    async def create_video_and_wait(request: Request, desk: _Desk) -> Response:
        """The video itself, when it is ready. Closing the connection cancels it. There is no deadline."""
        job = await intake.accept_video(request, desk, attached=True)
        (done,) = await intake.finished(desk, [job], request)
        assert done.output is not None, "a completed job has a result"
        headers = {"X-Model": done.model, "X-Inference-Time-S": f"{done.run_seconds:.3f}"}
        forget = BackgroundTask(desk.remove, done.id)
        return FileResponse(done.output, media_type="video/mp4", headers=headers, background=forget)


def _add_video(app: FastAPI) -> None:
    @app.get("/v1/videos/{video_id}", response_model=shapes.Video, responses=_errors(404))
    def retrieve_video(video_id: str, desk: _Desk) -> shapes.Video:
        """A job as it stands: step, place in the queue, seconds left."""
        return desk.video(_job(desk, video_id))

    @app.head("/v1/videos/{video_id}/content", include_in_schema=False)
    @app.get(
        "/v1/videos/{video_id}/content",
        response_class=FileResponse,
        responses={200: _VIDEO, 206: _VIDEO, **_errors(404, 416, 422)},
    )
    def download_video(
        request: Request, video_id: str, desk: _Desk, variant: Annotated[Literal["video"], Query()] = "video"
    ) -> Response:
        """The MP4 file; ranges are served."""
        job = _job(desk, video_id)
        if job.status == "failed":
            raise RefusedError(422, job.error_message or "the job failed", code=job.error_code)
        if job.status != "completed" or job.output is None:
            raise RefusedError(404, f"video {video_id} is not ready: {job.status}", code="not_ready")
        try:
            found = os.stat(job.output)
        except FileNotFoundError:
            raise RefusedError(404, f"the file of {video_id} is gone", code="gone") from None
        ranges.check(request, found.st_size)
        return FileResponse(job.output, media_type="video/mp4", filename=f"{video_id}.mp4", stat_result=found)

    @app.delete("/v1/videos/{video_id}", response_model=shapes.Deleted, responses=_errors(404))
    def delete_video(video_id: str, desk: _Desk) -> shapes.Deleted:
        """Cancel a job, or forget a finished one and its file. A running one ends within a step."""
        job = desk.remove(_job(desk, video_id).id)
        if job is None:
            raise _no_video(video_id)
        return shapes.Deleted(id=video_id)

    @app.get(
        "/v1/videos/{video_id}/events",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Events until the job has ended."},
            **_errors(404),
        },
    )
    async def follow_video(video_id: str, desk: _Desk) -> Response:
        """Server-sent events: queued, progress, and completed, failed or cancelled as the last."""
        job = await run_in_threadpool(_job, desk, video_id)
        return StreamingResponse(
            event_stream(desk, job), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


def _job(desk: Desk, video_id: str) -> Job:
    job = desk.store.get(video_id)
    if job is None or job.status == "cancelled" or job.attached:
        raise _no_video(video_id)
    return job


def _no_video(video_id: str) -> RefusedError:
    return RefusedError(404, f"there is no video {video_id}", param="video_id", code="not_found")


def _add_operations(app: FastAPI) -> None:
    @app.get("/v1/models", response_model=shapes.Models, responses=_errors())
    def list_models(desk: _Desk) -> shapes.Models:
        """The names by which the one model may be asked for."""
        created = int(desk.started_at)
        return shapes.Models(data=[shapes.Model(id=n, created=created) for n in desk.settings.names])

    @app.get("/v1/models/{name:path}", response_model=shapes.Model, responses=_errors(404))
    def retrieve_model(name: str, desk: _Desk) -> shapes.Model:
        """One of these names."""
        if name not in desk.settings.names:
            raise RefusedError(404, f"there is no model {name}", param="model", code="model-not-found")
        return shapes.Model(id=name, created=int(desk.started_at))

    @app.head("/health", include_in_schema=False)
    @app.get(
        "/health",
        response_model=shapes.Health,
        responses={503: {"model": shapes.Health}},
        openapi_extra={"security": [{}]},  # it needs no key
    )
    async def health(desk: _Desk) -> Response:
        """200 once every rank is ready, 503 with what is going on before that and while ranks restart."""
        told = dict(desk.state)
        body = shapes.Health(status=told.pop("state"), **told)
        return JSONResponse(body.model_dump(exclude_none=True), 200 if desk.is_ready else 503)

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text."}, **_errors()},
    )
    def metrics(desk: _Desk) -> Response:
        """For Prometheus."""
        desk.count()
        return Response(desk.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_not_here(app: FastAPI) -> None:
    """What OpenAI's client can call and Armillary does not do."""
    for route, why in _NOT_HERE.items():
        method, path = route.split()
        app.add_api_route(path, _refusal(why), methods=[method], include_in_schema=False)


def _refusal(why: str) -> Any:
    def refuse(request: Request) -> Response:
        body = error_body(why, kind="not_implemented_error", code="not_implemented")
        return JSONResponse(body, 501)

    return refuse
