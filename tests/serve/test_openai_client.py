"""OpenAI's own client, unmodified, against the server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import openai
import pytest
from PIL import Image
from servers import Server

# OpenAI announces the end of its own video service; the client goes on
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
SIZE: Any = "64x64"  # the client's type names OpenAI's own sizes
SHORT: Any = "0.2"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "start.png")
    return tmp_path / "start.png"


def test_images_are_generated(client: openai.OpenAI) -> None:
    answer = client.images.generate(
        model="tiny", prompt="a red ball", n=2, size=SIZE, response_format="b64_json", extra_body={"seed": 3}
    )
    assert answer.data is not None
    sizes = [Image.open(io.BytesIO(base64.b64decode(one.b64_json or ""))).size for one in answer.data]
    assert sizes == [(64, 64), (64, 64)]
    assert answer.data[0].b64_json != answer.data[1].b64_json


def test_a_video_is_created_followed_downloaded_and_deleted(client: openai.OpenAI, server: Server) -> None:
    video = client.videos.create(model="tiny", prompt="a ball rolls", size=SIZE, seconds=SHORT)
    server.await_status(video.id, "completed")
    done = client.videos.retrieve(video.id)
    assert (done.status, done.progress, done.size, done.model) == ("completed", 100, "64x64", "tiny")
    clip = client.videos.download_content(video.id).read()
    with av.open(io.BytesIO(clip)) as container:
        assert container.streams.video[0].frames == 5
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError) as refusal:
        client.videos.retrieve(video.id)
    assert (refusal.value.code, refusal.value.param) == ("not_found", "video_id")


def test_videos_are_listed_page_by_page(client: openai.OpenAI, server: Server) -> None:
    made = [client.videos.create(prompt=f"ball {number}", size=SIZE).id for number in range(3)]
    listed = [video.id for video in client.videos.list(limit=1, order="desc")]
    assert listed[:3] == made[::-1]
    for video_id in made:
        server.await_status(video_id, "completed")
        client.videos.delete(video_id)


def test_a_picture_is_uploaded_as_the_first_frame(
    client: openai.OpenAI, server: Server, picture: Path
) -> None:
    video = client.videos.create(prompt="it moves", input_reference=picture, size=SIZE)
    done = server.await_status(video.id, "completed", "failed")
    assert (done["status"], done["mode"]) == ("completed", "image-to-video")
    client.videos.delete(video.id)
    assert list((server.data / "uploads").iterdir()) == []


def test_a_picture_by_address_is_refused(client: openai.OpenAI) -> None:
    by_address = {"input_reference[image_url]": "http://localhost/a.png"}
    with pytest.raises(openai.BadRequestError, match="takes files that are uploaded") as refusal:
        client.videos.create(prompt="it moves", extra_body=by_address)
    assert refusal.value.param == "input_reference"


def test_create_and_poll_works(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="a ball", size=SIZE, poll_interval_ms=100)
    assert video.status == "completed"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"16") as refusal:
        client.videos.create(prompt="a ball", size="63x64")  # type: ignore[arg-type]
    assert (refusal.value.param, refusal.value.code) == ("size", "size-grid")
    with pytest.raises(openai.BadRequestError, match="there is no model") as refusal:
        client.images.generate(prompt="a ball", model="dall-e-3")
    assert refusal.value.param == "model"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.videos.remix("video_1", prompt="again"),
        lambda client: client.videos.edit(prompt="again", video=b"none"),
        lambda client: client.videos.extend(prompt="on", seconds="4", video=b"none"),
        lambda client: client.videos.create_character(name="Ann", video=b"none"),
        lambda client: client.videos.get_character("character_1"),
        lambda client: client.images.edit(image=b"none", prompt="again"),
    ],
)
def test_what_armillary_does_not_do_is_said_in_openais_shape(client: openai.OpenAI, call: Any) -> None:
    with pytest.raises(openai.APIStatusError) as refusal:
        call(client)
    assert (refusal.value.status_code, refusal.value.code) == (501, "not_implemented")


def test_a_request_is_made_again_from_its_seed(client: openai.OpenAI, server: Server) -> None:
    fields = {"prompt": "a ball", "size": SIZE, "response_format": "b64_json"}
    made = client.images.generate(model="tiny", **fields, extra_body={"seed": 5}).data
    assert made is not None
    (other,) = server.post("/v1/images/generations", seed=5, **fields).json()["data"]
    assert made[0].b64_json == other["b64_json"]
