"""From the fields that clients send to Armillary's one request.

`shapes.py` says which fields there are. Their values are judged by `GenerationRequest` and `complete`, as
those of the command line and of Python are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from armillary.engine.request import GenerationRequest
from armillary.engine.rules import MAX_SIDE
from armillary.errors import Problem, RequestError, list_choices
from armillary.serve.bodies import Pairs
from armillary.serve.media_access import REFERENCES, refused_reference
from armillary.serve.refusals import FieldProblem
from armillary.serve.shapes import Generation, ImageFields, VideoFields

_SIDE = re.compile(r"\d{1,6}", re.ASCII)
"""Bounded, because Python refuses to read a number of thousands of digits."""
_OBJECTS = ("extra_params", "extra_args")
_LINE = 1000
_HALF = re.compile(r"[\ud800-\udfff]")
"""Of a surrogate pair."""
_ONE_ONLY = ("n", "num_outputs_per_prompt")
_NOT_PASSED_ON = {"model", "user", "extra_params", "extra_args", "width", "height", "generate_sound"}


def video_request(
    fields: Mapping[str, Any],
    upload: tuple[Literal["image", "video"], str] | None,
    names: tuple[str, ...],
    grid: int = 1,
) -> GenerationRequest:
    """The request that the fields of a video ask for; `upload` is the kind and the path of a sent file, and
    `width` and `height` are multiples of `grid` pixels.

    Raises RequestError with every problem of form, each with the client's name of the field.
    """
    given, problems = _known(fields, VideoFields, names)
    passed = {key: value for key, value in given.items() if key not in {*_NOT_PASSED_ON, *_ONE_ONLY}}
    for field in _ONE_ONLY:
        if str(given.get(field, 1)) != "1":
            problems.append(FieldProblem("one-output", f"{field} is 1 for videos", "leave it out", field))
    problems += _size(given, passed, grid)
    if "generate_sound" in given:
        passed["sound"] = given["generate_sound"]
    passed["plain_prompt"] = _plain_prompt(given, problems, both=True)
    if upload is not None:
        passed[upload[0]] = upload[1]
    if passed.get("mode") == "text-to-image":
        fix = "use POST /v1/images/generations"
        problems.append(FieldProblem("mode", "text-to-image makes no video", fix, "mode"))
    if str(passed.get("num_frames")) == "1":
        fix = "for a picture use POST /v1/images/generations"
        problems.append(FieldProblem("frames-grid", "a video has more than 1 frame", fix, "num_frames"))
    if "mode" not in passed:
        passed["mode"] = f"{upload[0]}-to-video" if upload else "text-to-video"
    return _parsed(passed, problems)


def image_request(fields: Mapping[str, Any], names: tuple[str, ...]) -> tuple[GenerationRequest, int, str]:
    """The request that the fields of a picture ask for, how many of them, and the ending of their files."""
    given, problems = _known(fields, ImageFields, names)
    legal = {
        "response_format": ("b64_json",),
        "output_format": ("png", "jpeg"),
        "quality": ("auto",),
        "background": ("auto",),
        "moderation": ("auto",),
        "stream": (False,),
        "n": tuple(range(1, 11)),
    }
    for field, values in legal.items():
        value = given.get(field, values[0])
        if not any(value == one and type(value) is type(one) for one in values):
            choices = list_choices([json.dumps(one) for one in values])
            why = f"{field} must be {choices}, not {_shown(value)}"
            problems.append(FieldProblem("field-form", why, "", field))
    passed = {key: value for key, value in given.items() if key not in {*_NOT_PASSED_ON, *legal}}
    if passed.get("size") == "auto":
        del passed["size"]
    passed |= {"mode": "text-to-image", "plain_prompt": _plain_prompt(given, problems, both=False)}
    request = _parsed(passed, problems)
    return request, given.get("n", 1), f".{given.get('output_format', 'png')}"


def _parsed(passed: Mapping[str, Any], problems: list[Problem]) -> GenerationRequest:
    request = None
    try:
        request = GenerationRequest.parse(passed)
    except RequestError as error:
        problems = [*problems, *error.problems]
    if problems or request is None:
        raise RequestError(problems)
    return request


def _known(
    fields: Mapping[str, Any], shape: type[Generation], names: tuple[str, ...]
) -> tuple[dict[str, Any], list[Problem]]:
    """The fields that were given (null is not), and what is wrong with those that there are not."""
    empty = {key for key in (*shape.model_fields, *REFERENCES, "input_reference") if fields.get(key) is None}
    given = _unflattened({key: value for key, value in fields.items() if key not in empty})
    problems: list[Problem] = []
    fix = f"the fields are {', '.join(shape.model_fields)}"
    for key in [key for key in given if key not in shape.model_fields]:
        del given[key]
        root = key.split("[", 1)[0]  # how OpenAI's client writes an object in a form
        if root in REFERENCES or root == "input_reference":
            problems.append(refused_reference(root))
        else:
            problems.append(FieldProblem("field-unknown", f"unknown field {_shown(key)}", fix, key[:100]))
            fix = ""  # they are listed once
    for key in ("model", "user"):
        if not _is_line(given.get(key, "")):
            why = f"{key} must be text of at most {_LINE} characters, not {_shown(given[key])}"
            problems.append(FieldProblem("field-form", why, "", key))
    model = given.get("model")
    if isinstance(model, str) and model not in names:
        why = f"there is no model {_shown(model)} here"
        problems.append(FieldProblem("model-not-found", why, f"use {list_choices(names)}", "model"))
    return given, problems


def _is_line(value: object) -> bool:
    """Whether it is text that a log can show."""
    return isinstance(value, str) and len(value) <= _LINE and "\0" not in value and not _HALF.search(value)


def _unflattened(given: dict[str, Any]) -> dict[str, Any]:
    """`extra_params[use_duration_template]`, as OpenAI's client writes an object in a form, in its object."""
    for key in list(given):
        name, bracket, rest = key.partition("[")
        whole = given.get(name, {})
        if bracket and rest.endswith("]") and name in _OBJECTS and isinstance(whole, dict):
            value = given.pop(key)
            given[name] = {**whole, rest[:-1]: {"true": True, "false": False}.get(str(value).lower(), value)}
    return given


def _size(given: Mapping[str, Any], passed: dict[str, Any], grid: int) -> Iterator[Problem]:
    sides = [side for side in ("width", "height") if side in given]
    if not sides:
        return
    if "size" in given:
        yield FieldProblem("size-twice", f"size and {sides[0]} are both given", "give one", sides[0])
    elif len(sides) == 1:
        yield FieldProblem("size-half", f"{sides[0]} comes without the other side", "give both", sides[0])
    for side in sides:
        whole = _SIDE.fullmatch(str(given[side]))
        if not whole or not 0 < int(given[side]) <= MAX_SIDE or int(given[side]) % grid:
            legal = f"a multiple of {grid} from {grid} to {MAX_SIDE} pixels"
            why = f"{side} must be {legal}, not {_shown(given[side])}"
            yield FieldProblem("field-form", why, "", side)
            return
    passed["size"] = f"{given.get('width', 0)}x{given.get('height', 0)}"


def _plain_prompt(given: Mapping[str, Any], problems: list[Problem], *, both: bool) -> bool:
    """Whether the extra parameters ask for prompts without added sentences; other parameters are refused."""
    templates = {"use_resolution_template": True, "use_duration_template": True}
    for field in _OBJECTS:
        for key, value in _extra(given.get(field, {}), field, problems).items():
            name = f"{field}.{key}"
            if key in templates and isinstance(value, bool):
                templates[key] = value
            elif key == "guardrails" and value is False:
                continue  # as it is
            elif key == "guardrails":
                why = "this server runs no guardrails, so guardrails can only be false"
                problems.append(FieldProblem("guardrails", why, "send false, or leave it out", name))
            else:
                fix = f"it may have guardrails (false), {' and '.join(templates)} (true or false)"
                why = f"{field} has {_shown(key)}: {_shown(value)}"
                problems.append(FieldProblem("extra-params", why, fix, name))
    resolution, duration = templates.values()
    if both and resolution != duration:
        why = "use_resolution_template and use_duration_template are switched together"
        problems.append(FieldProblem("extra-params", why, "give both the same value", "extra_params"))
    return not resolution


def _extra(value: Any, field: str, problems: list[Problem]) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=Pairs)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Pairs) and value.twice is not None:
        why = f"{field} has {_shown(value.twice)} twice"
        problems.append(FieldProblem("extra-params", why, "give it once", f"{field}.{value.twice}"))
    if isinstance(value, dict):
        return value
    problems.append(FieldProblem("field-form", f"{field} must be a JSON object", "", field))
    return {}


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return "what was sent"
    return text if len(text) <= 60 else f"{text[:57]}..."
