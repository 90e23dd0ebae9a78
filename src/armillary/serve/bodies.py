"""Request bodies, read piece by piece and bounded: multipart forms with files, and JSON objects.

What is too large or broken is refused by the name of its field. The rest of such a body is still taken from
the connection (up to a bound), since a client that is busy sending does not read the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from armillary.errors import RequestError
from armillary.serve.media_access import Upload, UploadWriter
from armillary.serve.refusals import FieldProblem, RefusedError

MAX_JSON_BYTES = 12 << 20
"""More than a client can mean, and little enough that reading the worst of it is over in seconds."""
MAX_FIELD_BYTES = 256 << 10
"""Of one text field; the longest legal one, a prompt, has 32,000 characters."""
MAX_FIELDS = 64
_DRAINED_BYTES = 64 << 20
_SHORT_JSON_BYTES = 64 << 10
_ONE_AT_A_TIME = asyncio.Semaphore()
_INT_DIGITS = 30
"""Longer whole numbers are beyond every bound, and become infinite for the field's own refusal."""


@dataclass
class Body:
    """What a client sent."""

    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Upload] = field(default_factory=dict)

    def discard(self) -> None:
        for upload in self.files.values():
            upload.discard()


async def read_body(request: Request, uploads: Path, file_field: str | None, max_upload: int) -> Body:
    """The fields of a JSON object or a multipart form; files are taken for `file_field` only.

    Raises RequestError naming the field, RefusedError 413 and 415.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    _refuse_endless(request.headers.get("content-length"), max_upload, file_field)
    stream = request.stream()
    if kind == b"multipart/form-data" and file_field is not None:
        form = _Form(options.get(b"boundary", b""), uploads, file_field, max_upload)
        return await _finished(_read_form(stream, form), stream)
    if kind == b"application/json":
        return await _finished(_read_json(stream), stream)
    legal = "application/json" + (" or multipart/form-data" if file_field else "")
    sent = kind.decode("latin-1") or "nothing"
    raise RefusedError(415, f"Content-Type is {sent}; use {legal}", param="Content-Type", code="content-type")


def _refuse_endless(declared: str | None, max_upload: int, file_field: str | None) -> None:
    """What is far beyond every bound is not waited for; a little over, it is refused by its field's name."""
    most = max(MAX_JSON_BYTES, max_upload) + _DRAINED_BYTES
    if declared is not None and declared.isdecimal() and int(declared) > most:
        why = f"the body is announced with {declared} bytes, and {most} are read at most"
        raise RefusedError(413, why, param=file_field, code="body-size", headers={"Connection": "close"})


async def _finished(reading: Any, stream: AsyncIterator[bytes]) -> Body:
    try:
        body: Body = await reading
        return body
    except (RequestError, RefusedError):
        drained = 0
        async for chunk in stream:
            drained += len(chunk)
            if drained > _DRAINED_BYTES:
                break
        raise


# ------------------------------------------------------------------------------------------------- JSON


async def _read_json(stream: AsyncIterator[bytes]) -> Body:
    chunks, size = [], 0
    async for chunk in stream:
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_JSON_BYTES:
            raise RefusedError(413, f"the body is larger than {MAX_JSON_BYTES} bytes", code="body-size")
    text = b"".join(chunks)
    if size <= _SHORT_JSON_BYTES:
        return Body(fields=_parse(text))
    async with _ONE_AT_A_TIME:  # what a long text unpacks into may be fifty times as large
        return Body(fields=await asyncio.to_thread(_parse, text))


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_int=_bounded_int, object_pairs_hook=Pairs)
    except (ValueError, RecursionError) as error:
        why = f"the body is not JSON ({error})"
        raise RequestError(FieldProblem("body-json", why, "send one JSON object")) from None
    if not isinstance(value, Pairs):
        raise RequestError(FieldProblem("body-json", "the body is no JSON object", "send one JSON object"))
    if len(value) > MAX_FIELDS:
        why = f"the body has {len(value)} fields, and at most {MAX_FIELDS} are read"
        raise RequestError(FieldProblem("body-json", why, "send fewer"))
    if value.twice is not None:
        why = f"{value.twice} is given twice"
        raise RequestError(FieldProblem("body-json", why, "give it once", value.twice))
    return value


class Pairs(dict[str, Any]):
    """A JSON object that remembers the first name it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = Counter(name for name, _ in pairs) if len(pairs) > len(self) else None
        self.twice = names.most_common(1)[0][0] if names else None


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float("-inf" if digits[0] == "-" else "inf")


# ------------------------------------------------------------------------------------------------ forms


async def _read_form(stream: AsyncIterator[bytes], form: _Form) -> Body:
    try:
        async for chunk in stream:
            form.feed(chunk)
        return form.finish()
    except BaseException:  # also where the client goes away in the middle
        form.discard()
        raise


class _Form:
    """A multipart form as it arrives: text is kept, files go to the disk."""

    def __init__(self, boundary: bytes, uploads: Path, file_field: str, max_upload: int) -> None:
        self._body = Body()
        self._uploads = uploads
        self._file_field = file_field
        self._max_upload = max_upload
        self._headers: dict[bytes, bytes] = {}
        self._header = [b"", b""]
        self._name = ""
        self._text: list[bytes] = []
        self._text_bytes = 0
        self._writer: UploadWriter | None = None
        self._ended = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]
        except FormParserError as error:
            raise _broken(f"the form is broken ({error})", None) from None
        if not boundary:
            raise _broken("the Content-Type of the form names no boundary", None)

    def _callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._grow_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._grow_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open_part,
            "on_part_data": lambda data, start, end: self._take(data[start:end]),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _broken(f"the form is broken ({error})", self._name or None) from None

    def finish(self) -> Body:
        if not self._ended:
            where = f" in {self._name}" if self._name else ""
            raise _broken(f"the form ends early{where}", self._name or None)
        return self._body

    def discard(self) -> None:
        self._body.discard()
        if self._writer is not None:
            self._writer.discard()

    def _begin_part(self) -> None:
        self._headers, self._header = {}, [b"", b""]
        self._name, self._text, self._text_bytes = "", [], 0
        if len(self._body.fields) + len(self._body.files) >= MAX_FIELDS:
            raise _broken(f"the form has more than {MAX_FIELDS} fields", None)

    def _grow_header(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _end_header(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _open_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise _broken("a part of the form has no name", None)
        if self._name in self._body.fields or self._name in self._body.files:
            raise _broken(f"{self._name} is given twice", self._name)
        if b"filename" not in options:
            return
        if self._name != self._file_field:
            fix = f"send the file as {self._file_field}"
            raise RequestError(FieldProblem("upload-field", f"{self._name} takes no file", fix, self._name))
        self._writer = UploadWriter(self._uploads, self._name, self._max_upload)

    def _take(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)
            return
        self._text_bytes += len(data)
        if self._text_bytes > MAX_FIELD_BYTES:
            why = f"{self._name} is longer than {MAX_FIELD_BYTES} bytes"
            raise RequestError(FieldProblem("field-size", why, "send a shorter text", self._name))
        self._text.append(data)

    def _end_part(self) -> None:
        if self._writer is not None:
            self._body.files[self._name] = self._writer.finish()
            self._writer = None
            return
        try:
            self._body.fields[self._name] = b"".join(self._text).decode()
        except UnicodeDecodeError:
            raise _broken(f"{self._name} is no UTF-8 text", self._name) from None

    def _end(self) -> None:
        self._ended = True


def _broken(why: str, param: str | None) -> RequestError:
    return RequestError(FieldProblem("body-form", why, "send multipart/form-data as RFC 7578 has it", param))
