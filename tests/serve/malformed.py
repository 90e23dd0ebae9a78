"""Seeded malformed requests: wrong types and values in every field, huge ones, broken bodies."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

VIDEO, IMAGE = "/v1/videos", "/v1/images/generations"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Malformed:
    """One request, and the field that its refusal must name (None: the body as a whole)."""

    path: str
    headers: dict[str, str]
    body: bytes
    param: str | None


_NUMBERS = ("num_inference_steps", "guidance_scale", "flow_shift", "seed")
_VIDEO_NUMBERS = (*_NUMBERS, "num_frames", "fps", "seconds", "width", "height", "n", "num_outputs_per_prompt")
_TEXTS = ("prompt", "model", "negative_prompt", "size", "user")
_WRONG_NUMBERS: tuple[Any, ...] = (
    "many",
    [],
    {},
    [1],
    {"a": 1},
    True,
    float("nan"),
    float("inf"),
    -1,
    10**9,
    -(10**400),
    1e308,
)
_WRONG_TEXTS: tuple[Any, ...] = (5, 1.5, [], {}, ["a"], True, "x" * 40_000, "\ud800", 10**400)


def malformed(number: int) -> Malformed:
    """The request of a number; the same one every time."""
    chance = random.Random(number)
    kind = chance.choice(("field", "field", "field", "unknown", "extra", "form", "truncated", "json", "huge"))
    return {
        "field": _wrong_field,
        "unknown": _unknown_field,
        "extra": _wrong_extra,
        "form": _wrong_form,
        "truncated": _truncated_form,
        "json": _broken_json,
        "huge": _huge,
    }[kind](chance)


def _json(path: str, fields: dict[str, Any], param: str | None) -> Malformed:
    return Malformed(path, {"content-type": "application/json"}, json.dumps(fields).encode(), param)


def _wrong_field(chance: random.Random) -> Malformed:
    path = chance.choice((VIDEO, f"{VIDEO}/sync", IMAGE))
    numbers = (*_NUMBERS, "n") if path == IMAGE else _VIDEO_NUMBERS
    fields: dict[str, Any] = {"prompt": "a ball"}
    if chance.random() < 0.3:
        field = chance.choice(_TEXTS)
        legal = {"user"} if field == "user" else set()
        fields[field] = chance.choice([t for t in _WRONG_TEXTS if not (legal and isinstance(t, str))])
    else:
        field = chance.choice(numbers)
        # a large seed is legal; a size is given by both sides or none
        fields[field] = chance.choice([n for n in _WRONG_NUMBERS if not (field == "seed" and n == 10**9)])
        if field in ("width", "height"):
            fields["height" if field == "width" else "width"] = 64
    return _json(path, fields, field)


def _unknown_field(chance: random.Random) -> Malformed:
    field = chance.choice(("num_frame", "steps", "cfg", "true_cfg_scale", "image", "lora", "prompt ", ""))
    values: tuple[Any, ...] = (1, "a", [], {"a": None})
    value = chance.choice(values)
    return _json(chance.choice((VIDEO, IMAGE)), {"prompt": "a ball", field: value}, field)


def _wrong_extra(chance: random.Random) -> Malformed:
    choices: tuple[tuple[Any, str], ...] = (
        ({"guardrails": True}, "extra_params.guardrails"),
        ({"control_path": "/etc/passwd"}, "extra_params.control_path"),
        ("{", "extra_params"),
        (7, "extra_params"),
        ([], "extra_params"),
        ({"use_resolution_template": "no"}, "extra_params.use_resolution_template"),
    )
    value, param = chance.choice(choices)
    return _json(chance.choice((VIDEO, IMAGE)), {"prompt": "a ball", "extra_params": value}, param)


def _part(name: str, data: bytes, file: bool = False) -> bytes:
    filename = '; filename="a"' if file else ""
    return (
        f'--edge\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'.encode() + data + b"\r\n"
    )


_FORM = {"content-type": "multipart/form-data; boundary=edge"}


def _wrong_form(chance: random.Random) -> Malformed:
    parts, param = chance.choice(
        (
            (_part("prompt", b"a") + _part("num_frames", b"1e9"), "num_frames"),
            (_part("prompt", b"a") + _part("fps", b"nan"), "fps"),
            (_part("prompt", b"a") + _part("seconds", b"-inf"), "seconds"),
            (_part("prompt", b"\xff\xfe"), "prompt"),
            (_part("prompt", b"a") + _part("prompt", b"b"), "prompt"),
            (_part("prompt", b"a") + _part("input_reference", b"", True), "input_reference"),
            (_part("prompt", b"a") + _part("input_reference", b"%PDF-1.7", True), "input_reference"),
            (_part("prompt", b"a") + _part("input_reference", PNG + b"\0" * 99, True), "input_reference"),
            (_part("prompt", b"a") + _part("input_reference", b"text"), "input_reference"),
            (_part("prompt", b"a") + _part("mask", PNG, True), "mask"),
            (_part("prompt", b"a") + _part("image_reference", b"file:///etc/passwd"), "image_reference"),
            (_part("num_frames", b"5"), "prompt"),
        )
    )
    return Malformed(chance.choice((VIDEO, f"{VIDEO}/sync")), _FORM, parts + b"--edge--\r\n", param)


def _truncated_form(chance: random.Random) -> Malformed:
    whole = _part("prompt", b"a ball") + _part("input_reference", PNG + chance.randbytes(5000), True)
    start = whole.index(PNG)
    return Malformed(VIDEO, _FORM, whole[: chance.randrange(start, len(whole) - 2)], "input_reference")


def _broken_json(chance: random.Random) -> Malformed:
    body = chance.choice(
        (b"", b"{", b"[]", b"null", b'"a"', b"[" * 100_000, b"\xff", b'{"prompt": }', b"nan")
    )
    return Malformed(chance.choice((VIDEO, IMAGE)), {"content-type": "application/json"}, body, None)


def _huge(chance: random.Random) -> Malformed:
    field = chance.choice(("prompt", "negative_prompt"))
    text = "x" * (10 << 20)
    if chance.random() < 0.5:
        return _json(chance.choice((VIDEO, IMAGE)), {"prompt": "a", field: text}, field)
    first = b"" if field == "prompt" else _part("prompt", b"a")
    return Malformed(VIDEO, _FORM, first + _part(field, text.encode()) + b"--edge--\r\n", field)
