"""What every HTTP request passes first: it gets an id and its line in the log, and shows its key.

Without a key a loopback server still has a door: any page that its user's browser shows can send requests to
it. So those that a page of another origin sends are refused, and those for a host name that is not this
machine's, by which such a page would pretend to be of the same origin.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armillary.serve.logs import log
from armillary.serve.metrics import Metrics
from armillary.serve.refusals import error_body
from armillary.serve.settings import is_loopback

PAGE_ASSETS = "/docs/assets"
_OPEN = ("/health", "/docs", "/openapi.json")
"""What is told without a key: nothing of these is anybody's data."""
_HANDED_IN = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = ("GET", "HEAD", "OPTIONS")


class Gate:
    """An ASGI middleware."""

    def __init__(self, app: ASGIApp, api_key: str | None, host: str, metrics: Metrics) -> None:
        self._app = app
        self._key = api_key.strip().encode() if api_key else None  # a file of one line ends in another
        self._only_here = is_loopback(host)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, started, status = Headers(scope=scope), time.monotonic(), 500
        asked = headers.get("x-request-id", "")
        request_id = asked if _HANDED_IN.fullmatch(asked) else f"req_{secrets.token_hex(16)}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        app = self._app if self._is_let_in(scope["path"], headers) else _no_key
        if self._key is None and (header := self._foreign_header(headers)):
            app = _refusal_of(header)
        try:
            await app(scope, receive, numbered)
        finally:
            self._note(scope, request_id, status, time.monotonic() - started)

    def _is_let_in(self, path: str, headers: Headers) -> bool:
        if self._key is None or path in _OPEN or path.startswith(f"{PAGE_ASSETS}/"):
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        # compared in constant time: how long a refusal takes tells nothing about the key
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), self._key)

    def _foreign_header(self, headers: Headers) -> str | None:
        """The header by which a request is another site's; None where it is not."""
        host, hosts = headers.get("host", ""), headers.getlist("host")
        if self._only_here and not (len(hosts) == 1 and _is_here(host)):
            return "Host"
        own = all(_place(origin) == host for origin in headers.getlist("origin"))
        return None if own else "Origin"

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        if scope["path"] == "/health":  # asked all the time, and no refusal
            return
        if status >= 400:
            self._metrics.refused.labels(status).inc()
        if status >= 400 or scope["method"] not in _QUIET:  # clients poll a lot
            request = f"{scope['method']} {scope['path']}"
            log("request", request=request, status=status, request_id=request_id, seconds=round(seconds, 4))


async def _no_key(scope: Scope, receive: Receive, send: Send) -> None:
    why = "this server needs its API key: Authorization: Bearer KEY"
    body = error_body(why, kind="authentication_error", param="Authorization", code="invalid_api_key")
    await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def _is_here(host: str) -> bool:
    try:
        address = urlsplit(f"//{host}")
        _ = address.port  # ValueError where it is no port
        return is_loopback(address.hostname or "")
    except ValueError:  # a broken address
        return False


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _refusal_of(header: str) -> ASGIApp:
    why = "without an API key this server answers its own machine only, and no other site's pages"
    body = error_body(why, kind="permission_error", param=header, code="foreign_origin")
    return JSONResponse(body, 403)


def install(app: FastAPI, api_key: str | None, host: str, metrics: Metrics) -> None:
    app.add_middleware(Gate, api_key=api_key, host=host, metrics=metrics)
