"""The one request type: its form, its defaults, and every rule with its nearest legal values."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from armillary.engine.request import Abilities, CompleteRequest, GenerationRequest, complete
from armillary.errors import RequestError

NANO = Abilities(name="Cosmos3-Nano", sound=True, action=True)
EDGE = Abilities(name="Cosmos3-Edge", edge=True)
FAST = Abilities(name="Cosmos3-Fast", sound=True, distilled=True, distilled_steps=4)


def filled(abilities: Abilities = NANO, suffix: str | None = None, **fields: Any) -> CompleteRequest:
    return complete(GenerationRequest.parse({"prompt": "a robot", **fields}), abilities, suffix)


def refusal(abilities: Abilities = NANO, suffix: str | None = None, **fields: Any) -> str:
    with pytest.raises(RequestError) as caught:
        filled(abilities, suffix, **fields)
    return str(caught.value)


# form


def test_a_prompt_is_all_that_is_needed() -> None:
    request = filled()
    assert (request.mode, request.width, request.height) == ("text-to-video", 1280, 720)
    assert (request.num_frames, request.fps, request.num_inference_steps) == (189, 24.0, 35)
    assert (request.guidance_scale, request.guidance_interval, request.flow_shift) == (6.0, None, 10.0)


def test_direct_construction_raises_our_error_with_every_problem() -> None:
    fields: dict[str, Any] = {"prompt": " ", "num_frames": "x", "seed": 1.5, "sound": "maybe"}
    with pytest.raises(RequestError) as caught:
        GenerationRequest(**fields)
    assert [problem.message for problem in caught.value.problems] == [
        "prompt must be text of 1 to 32000 characters, not ' '",
        "num_frames must be a whole number, not 'x'",
        "seed must be a whole number from 0 to 2**63 - 1, not 1.5",
        "sound must be true or false, not 'maybe'",
    ]


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(RequestError, match="prompt is missing; give text"):
        GenerationRequest.parse({})


def test_an_unknown_field_is_refused_with_its_near_match() -> None:
    assert refusal(num_frame=5) == "unknown field 'num_frame'; did you mean num_frames?"


def test_an_unknown_mode_is_refused_with_the_modes_that_run() -> None:
    assert refusal(mode="text2video") == (
        "unknown mode 'text2video'; use text-to-image, text-to-video, image-to-video or video-to-video"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"size": "1280"},
        {"size": "-16x16"},
        {"num_frames": True},
        {"fps": False},
        {"guidance_interval": "400"},
        {"guidance_interval": [1, 2, 3]},
        {"guidance_interval": [1]},
        {"image": ""},
        {"negative_prompt": "\ud800"},
        {"prompt": "x" * 32_001},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_form_is_named_once(fields: dict[str, Any]) -> None:
    message = refusal(**fields)
    assert message.startswith(f"{next(iter(fields))} must be ")
    assert len(message.splitlines()) == 1
    assert len(message) < 200


def test_text_from_a_form_reads_like_numbers_from_json() -> None:
    text: dict[str, Any] = {
        "num_frames": "5",
        "fps": "16",
        "guidance_interval": "100,900",
        "sound": "true",
        "seed": "7",
    }
    numbers: dict[str, Any] = {
        "num_frames": 5,
        "fps": 16.0,
        "guidance_interval": [100, 900],
        "sound": True,
        "seed": 7,
    }
    assert filled(**text) == filled(**numbers)


# modes and defaults


@pytest.mark.parametrize(
    ("suffix", "fields", "mode"),
    [
        (".mp4", {}, "text-to-video"),
        (".PNG", {}, "text-to-image"),
        (".jpeg", {}, "text-to-image"),
        (".mp4", {"num_frames": 1}, "text-to-image"),
        (".mp4", {"image": "a.png"}, "image-to-video"),
        (".mp4", {"video": "a.mp4"}, "video-to-video"),
        (".npz", {"mode": "text-to-image"}, "text-to-image"),
    ],
)
def test_a_mode_left_out_follows_from_inputs_frames_and_output(
    suffix: str, fields: dict[str, Any], mode: str
) -> None:
    assert filled(suffix=suffix, **fields).mode == mode


def test_pictures_have_defaults_of_their_own() -> None:
    request = filled(num_frames=1)
    assert (request.width, request.height, request.num_inference_steps) == (1024, 1024, 50)
    assert (request.guidance_scale, request.guidance_interval, request.flow_shift) == (
        7.0,
        (400.0, 1000.0),
        3.0,
    )


def test_edge_has_defaults_of_its_own() -> None:
    video, image = filled(EDGE), filled(EDGE, num_frames=1)
    assert (video.width, video.height, video.guidance_scale, video.flow_shift) == (832, 480, 5.0, 3.0)
    assert (image.width, image.height) == (640, 640)


def test_none_turns_the_interval_off() -> None:
    assert filled(num_frames=1, guidance_interval="none").guidance_interval is None


def test_a_missing_seed_is_drawn_anew_each_time() -> None:
    assert len({filled().seed for _ in range(4)}) > 1


def test_a_complete_request_survives_json() -> None:
    request = filled(image=Path("first frame.png"), guidance_interval="0,500.5", sound=True, fps=23.976)
    assert CompleteRequest.from_json(request.to_json()) == request


# rules


@pytest.mark.parametrize(
    ("size", "nearest"),
    [
        ("1281x720", "use 1280x720 or 1296x720"),
        ("100x40", "use 96x32, 96x48, 112x32 or 112x48"),
        ("0x16", "use 16x16"),
        ("99999x16", "use 4096x16"),
    ],
)
def test_a_size_off_the_pixel_grid_names_the_nearest(size: str, nearest: str) -> None:
    message = refusal(size=size)
    assert "multiples of 16" in message
    assert message.endswith(nearest)


@pytest.mark.parametrize(
    ("frames", "nearest"), [(6, "5 or 9"), (8, "5 or 9"), (2, "1 or 5"), (0, "1 or 5"), (9999, "1201")]
)
def test_a_count_off_the_frame_grid_names_the_nearest(frames: int, nearest: str) -> None:
    assert refusal(num_frames=frames).endswith(f"a video has 4k+1 frames, from 5 to 1201; use {nearest}")


def test_one_frame_is_not_offered_where_the_mode_makes_a_video() -> None:
    assert refusal(num_frames=1, image="a.png").endswith("use 5")


@pytest.mark.parametrize(
    ("seconds", "fps", "frames"),
    [(2, 24, 49), (0.7, 30, 21), (2, 23.976, 49), (0.01, 24, 5), (7.875, 24, 189)],
)
def test_seconds_round_up_to_the_frame_grid(seconds: float, fps: float, frames: int) -> None:
    assert filled(seconds=seconds, fps=fps).num_frames == frames


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds": 2, "num_frames": 5}, "both set the length"),
        ({"seconds": -1}, "seconds must be a number above 0, not -1"),
        ({"seconds": math.nan}, "seconds must be a number above 0, not nan"),
        ({"seconds": 1e300}, "over 1201 frames"),
        ({"seconds": 1, "mode": "text-to-image"}, "takes no seconds"),
        ({"num_frames": 5, "mode": "text-to-image"}, "text-to-image makes 1 frame, not 5"),
        ({"image": "a.png", "video": "b.mp4"}, "video-to-video takes no image"),
        ({"image": "a.png", "mode": "text-to-video"}, "text-to-video takes no image"),
        ({"mode": "image-to-video"}, "image-to-video needs image"),
        ({"mode": "policy"}, "mode policy is not run by this version; use text-to-image"),
        ({"mode": "transfer"}, "mode transfer is not run by this version"),
        ({"fps": 0}, "fps must be between 1 and 240, not 0; the published value is 24"),
        ({"fps": math.inf}, "fps must be between 1 and 240, not inf"),
        ({"num_inference_steps": -3}, "num_inference_steps must be between 1 and 1000, not -3"),
        ({"guidance_scale": math.nan}, "guidance_scale must be between 0 and 100, not nan"),
        ({"flow_shift": 0}, "flow_shift must be between 0.01 and 100, not 0"),
        ({"guidance_interval": "900,100"}, "0 <= LO <= HI <= 1000, not 900,100"),
        ({"guidance_interval": "nan,100"}, "0 <= LO <= HI <= 1000, not nan,100"),
        ({"seed": -1}, "seed must be at least 0 and below 2**63, not -1"),
        ({"seed": 2**63}, "seed must be at least 0"),
        ({"num_frames": 1, "sound": True}, "text-to-image makes none"),
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    lines = refusal(**fields).splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    assert "num_frames=a number too long to print" in refusal(num_frames=10**5000)


def test_every_broken_rule_is_reported_at_once() -> None:
    lines = refusal(EDGE, size="100x100", num_frames=6, fps=0, guidance_scale=-1, sound=True).splitlines()
    assert [line.split()[0] for line in lines] == [
        "size",
        "num_frames=6",
        "fps",
        "guidance_scale",
        "Cosmos3-Edge",
    ]


def test_edge_does_no_video_to_video() -> None:
    assert refusal(EDGE, video="a.mp4").endswith("use text-to-image, text-to-video or image-to-video")


def test_sound_needs_a_checkpoint_that_has_it() -> None:
    assert refusal(Abilities(name="mute"), sound=True) == "mute generates no sound; leave sound out"


def test_a_distilled_checkpoint_fixes_guidance_and_schedule() -> None:
    request = filled(FAST, num_frames=1, guidance_scale=1)
    assert (request.num_inference_steps, request.guidance_scale, request.flow_shift) == (4, 1.0, None)
    assert "cannot do text-to-video; use text-to-image or image-to-video" in refusal(FAST)


def test_a_distilled_checkpoint_refuses_what_it_cannot_honour() -> None:
    fields: dict[str, Any] = {
        "guidance_scale": 6,
        "num_inference_steps": 35,
        "flow_shift": 3,
        "negative_prompt": "blur",
    }
    lines = refusal(FAST, num_frames=1, **fields).splitlines()
    assert len(lines) == 4
    assert all("Cosmos3-Fast is distilled" in line for line in lines)


def mostly(legal: st.SearchStrategy[Any], wild: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda draw: wild if draw == 9 else legal)


SIDES = mostly(st.integers(1, 80).map(lambda side: 16 * side), st.integers(0, 5000))
FIELDS = {
    "mode": mostly(st.just("text-to-video"), st.sampled_from(["text-to-image", "image-to-video", "policy"])),
    "size": st.builds("{}x{}".format, SIDES, SIDES),
    "num_frames": mostly(st.integers(0, 30).map(lambda k: 8 * k + 1), st.integers()),
    "seconds": mostly(st.floats(0.01, 40), st.floats()),
    "fps": mostly(st.floats(1, 60), st.floats()),
    "num_inference_steps": mostly(st.integers(1, 60), st.integers()),
    "guidance_scale": mostly(st.just(1.0) | st.floats(0, 10), st.floats()),
    "guidance_interval": mostly(st.just("none"), st.tuples(st.floats(), st.floats(0, 1000))),
    "flow_shift": mostly(st.floats(1, 12), st.floats()),
    "seed": mostly(st.integers(0, 2**32), st.integers()),
    "image": st.just("a.png"),
    "video": st.just("a.mp4"),
    "sound": st.booleans(),
}


@given(
    abilities=st.sampled_from([NANO, EDGE, FAST, Abilities(name="coarse", spatial_grid=8, temporal=8)]),
    suffix=st.sampled_from([None, ".mp4", ".png"]),
    fields=st.sets(st.sampled_from([*FIELDS]), max_size=6).flatmap(
        lambda chosen: st.fixed_dictionaries({field: FIELDS[field] for field in sorted(chosen)})
    ),
)
def test_a_request_is_refused_or_can_be_done(
    abilities: Abilities, suffix: str | None, fields: dict[str, Any]
) -> None:
    try:
        request = filled(abilities, suffix, **fields)
    except RequestError:
        return
    is_image = request.mode == "text-to-image"
    assert (
        request.width % abilities.spatial_grid == request.height % abilities.spatial_grid == 0 < request.width
    )
    assert request.num_frames == 1 if is_image else request.num_frames % abilities.temporal == 1
    assert all(map(math.isfinite, (request.fps, request.guidance_scale, request.flow_shift or 1.0)))
    assert CompleteRequest.from_json(request.to_json()) == request
