"""What a request may bring along: an uploaded file, bounded in bytes, its kind decided by its content.

Local paths and addresses are refused altogether: the server opens nothing that a client only names.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from armillary.engine.media import CONDITION_FRAMES, media_kind, read_image, read_video
from armillary.errors import Problem, RequestError
from armillary.serve.refusals import FieldProblem

REFERENCES = ("image_reference", "video_reference", "audio_reference", "control_reference")
"""Fields of other servers that name media by path or address."""


@dataclass(frozen=True)
class Upload:
    """A file that a client sent, in the server's own folder under a name of the server's own."""

    path: Path
    size: int

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


class UploadWriter:
    """Writes one upload, and no more of it than the server takes."""

    def __init__(self, folder: Path, field: str, max_bytes: int) -> None:
        self.path = folder / secrets.token_hex(16)
        self._field = field
        self._max_bytes = max_bytes
        self._size = 0
        self._file: BinaryIO = self.path.open("xb")

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_bytes:
            why = f"{self._field} is larger than {self._max_bytes} bytes (--max-upload-bytes)"
            raise RequestError(FieldProblem("upload-size", why, "send a smaller file", self._field))
        self._file.write(data)

    def finish(self) -> Upload:
        self._file.close()
        return Upload(self.path, self._size)

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def probe(upload: Upload, field: str) -> Literal["image", "video"]:
    """What an upload is, by decoding what a generation will read of it.

    Raises RequestError that names the field and what is accepted.
    """
    kind = media_kind(upload.path)
    try:
        if kind == "video":
            read_video(upload.path, CONDITION_FRAMES)
            return "video"
        read_image(upload.path)
        return "image"
    except RequestError as error:
        raise RequestError([_about(field, upload.path, problem) for problem in error.problems]) from None


def _about(field: str, path: Path, problem: Problem) -> FieldProblem:
    """The same problem with the client's field in place of the server's path."""
    message = problem.message.replace(f"image {path}", field).replace(f"video {path}", field)
    fix = problem.fix
    if problem.rule == "media-format" and "MP4" not in fix:
        fix = "give a PNG, JPEG or WebP picture, or an MP4 (or MOV), WebM, Matroska or AVI video"
    return FieldProblem(problem.rule, message.replace(str(path), field), fix, field)


def refused_reference(field: str) -> FieldProblem:
    """Why media that are named and not sent are refused."""
    why = f"{field} names media or holds them as text, and this server takes files that are uploaded"
    return FieldProblem(
        "media-access", why, "upload the file as input_reference (multipart/form-data)", field
    )
