"""The `Range` header: starlette serves what is right, and answers the rest in plain text."""

from __future__ import annotations

import re

from fastapi import Request

from armillary.serve.refusals import RefusedError

_RANGE = re.compile(r"bytes=\s*(?:\d+-\d*|-\d+)(?:\s*,\s*(?:\d+-\d*|-\d+))*", re.ASCII)
_ONE = re.compile(r"(\d*)-(\d*)", re.ASCII)


def check(request: Request, size: int) -> None:
    """Take a header that is no range out of the request, so that the whole file is served (RFC 9110, 14.2).

    Raises RefusedError 416 where no byte of a file of `size` bytes lies in the ranges.
    """
    header = request.headers.get("range")
    if header is None:
        return
    ranges = [(one[1], one[2]) for one in _ONE.finditer(header)] if _RANGE.fullmatch(header) else []
    if not ranges or any(first and last and int(first) > int(last) for first, last in ranges):
        kept = [(name, value) for name, value in request.scope["headers"] if name != b"range"]
        request.scope["headers"] = kept
    elif not all(int(first) < size if first else int(last) > 0 for first, last in ranges):
        why = f"the file has {size} bytes, and {header} lies outside"
        told = {"Content-Range": f"bytes */{size}"}
        raise RefusedError(416, why, param="Range", code="range", headers=told)
