"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}`.

`param` names the field that the client sent. Armillary's own problems name the rule they come from, and
`param_of` knows of every rule of a request which field it is about.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from armillary.errors import ArmillaryError, Problem
from armillary.serve.jobs import QueueFullError
from armillary.serve.logs import log

CLIENT_NAMES = {
    "image": "input_reference",
    "video": "input_reference",
    "sound": "generate_sound",
    "plain_prompt": "extra_params",
}
"""Fields of a request that have another name over HTTP."""

_FIELD_OF_RULE = {
    "mode-input": "input_reference",
    "size-grid": "size",
    "rows": "size",
    "frames-twice": "seconds",
    "frames-image": "num_frames",
    "frames-grid": "num_frames",
    "sound-mode": "generate_sound",
    "sound-checkpoint": "generate_sound",
}
_STORE_SECONDS = 5
_LONGEST_NAME, _MOST_LINES = 100, 64
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NAMED_FIRST = ("field-missing", "field-form")
_NAMED_LAST = re.compile(r"(?:its|takes no) (\w+)")


class RefusedError(Exception):
    """Answered with a 4xx, or the 500 of a job that failed, in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class FieldProblem(Problem):
    """A problem with a field as the client names it."""

    param: str | None = None


def param_of(problem: Problem) -> str | None:
    """The client's name of the field that a problem is about; None for one about no field."""
    if isinstance(problem, FieldProblem):
        return problem.param
    field = _field_of(problem)
    return CLIENT_NAMES.get(field, field) if field else None


def _field_of(problem: Problem) -> str | None:
    rule = problem.rule
    if rule in _FIELD_OF_RULE:
        return _FIELD_OF_RULE[rule]
    if rule in _NAMED_FIRST:
        return problem.message.split(" ", 1)[0]
    if rule == "distilled":
        named = _NAMED_LAST.search(problem.message)
        return named[1] if named else None
    if rule.startswith("media-"):
        return "input_reference"
    if rule in ("mode", "guidance-interval") or rule.endswith("-range"):
        return rule.removesuffix("-range").replace("-", "_")
    return None


def error_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    named = param and param[:_LONGEST_NAME]
    fields = {"message": message, "type": kind, "param": named, "code": code}
    # a client's own words may hold half a surrogate pair, which is no UTF-8
    return {
        "error": {key: value and value.encode(errors="replace").decode() for key, value in fields.items()}
    }


def told(problems: Iterable[Problem]) -> str:
    """Problems, a line each, with the fields as the client knows them; the first of very many."""
    return "\n".join(_renamed(problem) for problem in islice(problems, _MOST_LINES))


def _renamed(problem: Problem) -> str:
    if problem.rule == "mode-input":
        mode, verb, kind = re.split(r" (takes no|needs) ", problem.message)
        if verb == "takes no":
            return f"{mode} takes no {kind} as input_reference; leave it out, or choose another mode"
        article = "an" if kind == "image" else "a"
        return f"{mode} needs {article} {kind} as input_reference; upload it (multipart/form-data)"
    line = str(problem)
    field = line.split(" ", 1)[0]
    if problem.rule in _NAMED_FIRST and field in CLIENT_NAMES:
        return line.replace(field, CLIENT_NAMES[field], 1)
    return line


def problems_response(problems: Sequence[Problem]) -> JSONResponse:
    """400 with all problems; `param` and `code` are those of the first."""
    first = problems[0]
    return JSONResponse(error_body(told(problems), param=param_of(first), code=first.rule), 400)


def install(app: FastAPI) -> None:
    """Give every error of the application this shape."""
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(ArmillaryError, _wrong_request)
    app.add_exception_handler(QueueFullError, _queue_full)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(OperationalError, _store_waits)
    app.add_exception_handler(OSError, _disk)
    app.add_exception_handler(Exception, _own_fault)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError), "registered for it"
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = error_body(str(error), kind=kind, param=error.param, code=error.code)
    return JSONResponse(body, error.status, error.headers)


async def _wrong_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ArmillaryError), "registered for it"
    return problems_response(error.problems)


async def _queue_full(request: Request, error: Exception) -> JSONResponse:
    wait = max(1, round(request.app.state.desk.seconds_until_room()))
    body = error_body(f"{error}; try again later", kind="rate_limit_error", code="queue_full")
    return JSONResponse(body, 429, {"Retry-After": str(wait)})


async def _wrong_parameter(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError), "registered for it"
    details = error.errors()
    names = [str(detail["loc"][-1]) for detail in details]
    lines = [f"{name}: {detail['msg']}" for name, detail in zip(names, details, strict=True)]
    return JSONResponse(error_body("\n".join(lines), param=names[0], code="parameter"), 400)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException), "registered for it"
    message = f"{request.method} {request.url.path}: {error.detail}; see /docs"
    return JSONResponse(error_body(message, code="route"), error.status_code, error.headers)


async def _client_gone(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body("the client went away before the body ended", code="disconnect"), 400)


async def _store_waits(request: Request, error: Exception) -> JSONResponse:
    """The job store is full or locked: nothing was stored, and the same request may do later."""
    assert isinstance(error, OperationalError), "registered for it"
    if "full" in str(error.orig):
        return _no_room(request)
    body = error_body(f"the job store: {error.orig}; try again", kind="server_error", code="store_busy")
    return JSONResponse(body, 503, {"Retry-After": str(_STORE_SECONDS)})


async def _disk(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OSError), "registered for it"
    return _no_room(request) if error.errno in _NO_ROOM else await _own_fault(request, error)


def _no_room(request: Request) -> JSONResponse:
    log("error", request_id=request.state.request_id, error="the disk of the data folder is full")
    why = "the disk of the server's data folder is full; nothing was stored"
    return JSONResponse(error_body(why, kind="server_error", code="disk_full"), 507)


async def _own_fault(request: Request, error: Exception) -> JSONResponse:
    request_id = request.state.request_id
    log("error", request_id=request_id, error=f"{type(error).__name__}: {error}")
    message = f"the server failed; its log tells more about request {request_id}"
    return JSONResponse(error_body(message, kind="server_error", code="internal"), 500)
