"""From what clients send to the one request, and the names by which refusals call fields."""

from __future__ import annotations

from typing import Any

import pytest

from armillary.engine.abilities import Abilities
from armillary.engine.request import complete
from armillary.errors import ArmillaryError
from armillary.serve.protocol import image_request, video_request
from armillary.serve.refusals import param_of, told

NAMES = ("tiny",)
NANO = Abilities(name="Cosmos3-Nano", sound=True)


def _params(fields: dict[str, Any], abilities: Abilities = NANO, image: bool = False) -> list[str | None]:
    def ask() -> None:
        asked = image_request(fields, NAMES)[0] if image else video_request(fields, None, NAMES)
        complete(asked, abilities)

    with pytest.raises(ArmillaryError) as refusal:
        ask()
    return [param_of(problem) for problem in refusal.value.problems]


def test_an_object_in_a_form_is_read_as_openais_client_writes_it() -> None:
    flat = {f"extra_params[use_{name}_template]": "false" for name in ("resolution", "duration")}
    assert video_request({"prompt": "tea", **flat}, None, NAMES).plain_prompt is True


def test_a_missing_file_is_asked_for_by_the_clients_name() -> None:
    with pytest.raises(ArmillaryError) as refusal:
        complete(video_request({"prompt": "tea", "mode": "image-to-video"}, None, NAMES), NANO)
    assert "needs an image as input_reference; upload it" in told(refusal.value.problems)


def test_what_a_video_leaves_out_takes_the_published_defaults() -> None:
    filled = complete(video_request({"prompt": "tea"}, None, NAMES), NANO)
    assert (filled.width, filled.height, filled.num_frames) == (1280, 720, 189)
    assert (filled.num_inference_steps, filled.guidance_scale, filled.flow_shift) == (35, 6.0, 10.0)


def test_what_a_picture_leaves_out_takes_the_published_defaults() -> None:
    asked, count, suffix = image_request({"prompt": "tea"}, NAMES)
    filled = complete(asked, NANO)
    assert (filled.width, filled.height, filled.num_inference_steps) == (1024, 1024, 50)
    assert (filled.guidance_interval, count, suffix) == ((400.0, 1000.0), 1, ".png")


@pytest.mark.parametrize(("kind", "mode"), [("image", "image-to-video"), ("video", "video-to-video")])
def test_an_upload_decides_the_mode(kind: Any, mode: str) -> None:
    asked = video_request({"prompt": "tea"}, (kind, "/data/upload"), NAMES)
    assert (asked.mode, str(getattr(asked, kind))) == (mode, "/data/upload")


def test_one_frame_is_no_video() -> None:
    assert _params({"prompt": "tea", "num_frames": 1}) == ["num_frames"]


def test_width_and_height_are_a_size() -> None:
    assert video_request({"prompt": "tea", "width": "64", "height": 32}, None, NAMES).size == "64x32"


def test_null_is_a_field_that_is_left_out() -> None:
    assert video_request({"prompt": "tea", "seed": None}, None, NAMES).seed is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"steps": 3}, "steps"),
        ({"steps": None}, "steps"),
        ({"num_frames": 6}, "num_frames"),
        ({"num_frames": []}, "num_frames"),
        ({"seconds": 3, "num_frames": 5}, "seconds"),
        ({"seconds": "soon"}, "seconds"),
        ({"negative_prompt": "a\0b"}, "negative_prompt"),
        ({"seed": "1_000"}, "seed"),
        ({"user": "a\0b"}, "user"),
        ({"user": "\ud800"}, "user"),
        ({"width": "9" * 5000, "height": 64}, "width"),
        ({"extra_params": '{"guardrails": true, "guardrails": false}'}, "extra_params.guardrails"),
        ({"size": "63x64"}, "size"),
        ({"fps": float("nan")}, "fps"),
        ({"guidance_scale": 1e9}, "guidance_scale"),
        ({"guidance_interval": "9,1"}, "guidance_interval"),
        ({"flow_shift": 0}, "flow_shift"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"seed": -1}, "seed"),
        ({"mode": "policy"}, "mode"),
        ({"mode": "text-to-image"}, "mode"),
        ({"mode": "image-to-video"}, "input_reference"),
        ({"generate_sound": "loud"}, "generate_sound"),
        ({"model": "sora-2"}, "model"),
        ({"n": 2}, "n"),
        ({"width": 64}, "width"),
        ({"width": 64, "height": 64, "size": "64x64"}, "width"),
        ({"image_reference": "https://example.org/a.png"}, "image_reference"),
        ({"input_reference": "file:///etc/passwd"}, "input_reference"),
        ({"extra_params": {"guardrails": True}}, "extra_params.guardrails"),
        ({"extra_params": {"use_resolution_template": False}}, "extra_params"),
    ],
)
def test_a_refusal_names_the_clients_field(fields: dict[str, Any], param: str) -> None:
    assert _params({"prompt": "tea", **fields})[0] == param


def test_sound_that_the_checkpoint_has_not_is_refused_by_the_clients_name() -> None:
    fields = {"prompt": "tea", "generate_sound": True}
    assert _params(fields, Abilities(name="Quiet")) == ["generate_sound"]


def test_a_distilled_checkpoints_refusals_name_their_fields() -> None:
    distilled = Abilities(name="Fast", distilled=True, distilled_steps=4)
    fields = {"prompt": "tea", "guidance_scale": 3, "num_inference_steps": 9, "negative_prompt": "fog"}
    assert _params(fields, distilled, image=True) == [
        "guidance_scale",
        "num_inference_steps",
        "negative_prompt",
    ]


def test_every_wrong_field_is_named_at_once() -> None:
    fields = {"steps": 1, "seed": [], "size": 5, "extra_params": 3}
    assert _params(fields) == ["steps", "extra_params", "prompt", "size", "seed"]


def test_messages_call_fields_by_the_clients_names() -> None:
    with pytest.raises(ArmillaryError) as refusal:
        video_request({"prompt": "tea", "generate_sound": "loud"}, None, NAMES)
    assert told(refusal.value.problems) == "generate_sound must be true or false, not 'loud'"


def test_prompts_without_added_sentences_can_be_asked_for() -> None:
    plain = {"use_resolution_template": False, "use_duration_template": False, "guardrails": False}
    assert video_request({"prompt": "tea", "extra_params": plain}, None, NAMES).plain_prompt
    still = {"use_resolution_template": False}
    assert image_request({"prompt": "tea", "extra_args": still}, NAMES)[0].plain_prompt
    assert not video_request({"prompt": "tea"}, None, NAMES).plain_prompt


@pytest.mark.parametrize(
    "field", [{"n": 11}, {"n": "2"}, {"response_format": "url"}, {"quality": "hd"}, {"stream": True}]
)
def test_what_a_picture_cannot_be_is_refused(field: dict[str, Any]) -> None:
    assert _params({"prompt": "tea", **field}, image=True) == [*field]
