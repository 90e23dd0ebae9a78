"""The endpoints' refusals, without ranks."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from offline import Offline, offline as offline, offline_with as offline_with

TEA = {"prompt": "tea", "size": "64x64", "num_frames": 5}


def _ask(offline: Offline, method: str, path: str, **more: Any) -> httpx.Response:
    return asyncio.run(offline.ask(method, path, **more))


def _error(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, error["param"], error["code"]


def test_a_job_is_stored_and_the_engine_woken_before_the_answer(offline: Offline) -> None:
    answer = _ask(offline, "POST", "/v1/videos", json=TEA)
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert offline.desk.store.get(answer.json()["id"]) is not None
    assert list(offline.engine.receive()) == [{"wake": True}]


def test_the_seed_is_drawn_when_the_job_is_accepted(offline: Offline) -> None:
    answer = _ask(offline, "POST", "/v1/videos", json=TEA).json()
    job = offline.desk.store.get(answer["id"])
    assert job is not None
    assert job.fields["seed"] == answer["seed"]


def test_the_servers_seed_is_that_of_requests_that_give_none(offline_with: Callable[..., Offline]) -> None:
    server = offline_with(seed=77)
    assert _ask(server, "POST", "/v1/videos", json=TEA).json()["seed"] == 77
    assert _ask(server, "POST", "/v1/videos", json={**TEA, "seed": 5}).json()["seed"] == 5


def test_a_full_queue_is_429_with_the_seconds_to_wait(offline: Offline) -> None:
    for _ in range(2):
        _ask(offline, "POST", "/v1/videos", json=TEA)
    answer = _ask(offline, "POST", "/v1/videos", json=TEA)
    assert _error(answer) == (429, None, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1


def test_several_pictures_that_the_queue_has_no_room_for_are_429(offline: Offline) -> None:
    _ask(offline, "POST", "/v1/videos", json=TEA)
    answer = _ask(offline, "POST", "/v1/images/generations", json={"prompt": "tea", "n": 2})
    assert _error(answer) == (429, None, "queue_full")
    assert offline.desk.store.counts() == {"queued": 1}


def test_more_pictures_than_the_queue_ever_has_room_for_are_400(offline: Offline) -> None:
    answer = _ask(offline, "POST", "/v1/images/generations", json={"prompt": "tea", "n": 3})
    assert _error(answer) == (400, "n", "n")


def test_a_page_after_a_video_that_is_gone_is_400(offline: Offline) -> None:
    assert _error(_ask(offline, "GET", "/v1/videos?after=video_gen_1")) == (400, "after", "after")


@pytest.mark.parametrize(
    ("header", "status", "length"),
    [("bytes=2-5", 206, 4), ("bytes=9-5", 200, 100), ("bytes=abc", 200, 100), ("bytes=-3", 206, 3)],
)
def test_ranges_of_a_result_are_served_and_what_is_none_is_passed_over(
    offline: Offline, header: str, status: int, length: int
) -> None:
    path = f"/v1/videos/{_completed(offline, bytes(100))}/content"
    answer = _ask(offline, "GET", path, headers={"range": header})
    assert (answer.status_code, len(answer.content)) == (status, length)
    assert _ask(offline, "HEAD", path).headers["content-length"] == "100"


def test_a_range_past_the_end_is_416_with_the_size(offline: Offline) -> None:
    path = f"/v1/videos/{_completed(offline, bytes(100))}/content"
    answer = _ask(offline, "GET", path, headers={"range": "bytes=100-"})
    assert _error(answer) == (416, "Range", "range")
    assert answer.headers["content-range"] == "bytes */100"


def _completed(offline: Offline, result: bytes) -> str:
    video_id: str = _ask(offline, "POST", "/v1/videos", json=TEA).json()["id"]
    offline.desk.store.claim()
    output = offline.desk.settings.results / "out.mp4"
    output.write_bytes(result)
    offline.desk.store.finish(video_id, output, step_seconds=1.0, run_seconds=1.0)
    return video_id


def test_a_models_name_is_looked_up(offline: Offline) -> None:
    name = offline.desk.settings.names[0]
    assert _ask(offline, "GET", f"/v1/models/{name}").json()["id"] == name
    assert _error(_ask(offline, "GET", "/v1/models/other")) == (404, "model", "model-not-found")


def test_the_documentation_page_needs_nothing_from_elsewhere(offline: Offline) -> None:
    page = _ask(offline, "GET", "/docs").text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) > 1
    assert {_ask(offline, "GET", address).status_code for address in addresses} == {200}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "tea", "num_frames": 5, "num_frames": 9}', "num_frames"),
        (b'{"prompt": "tea", "seconds": 1e308}', "seconds"),
        (b'{"prompt": "tea", "width": 1000000000, "height": 64}', "width"),
        (b'{"prompt": "tea", "width": 64, "height": 0}', "height"),
        (b'{"prompt": "tea", "width": "%s", "height": 64}' % (b"9" * 5000), "width"),
        (b'{"prompt": "tea", "width": 64, "height": 100}', "height"),
        (b'{"prompt": "tea", "extra_params": {"a": 1, "a": 2}}', "extra_params.a"),
        (b'{"prompt": "tea", "%s": 1}' % (b"x" * 5000), "x" * 100),
        (b"{%s}" % b",".join(b'"%d": 1' % number for number in range(65)), None),
    ],
)
def test_what_a_body_has_too_much_of_is_refused_by_its_name(
    offline: Offline, body: bytes, param: str | None
) -> None:
    headers = {"content-type": "application/json"}
    answer = _ask(offline, "POST", "/v1/videos", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_fields_that_there_are_are_listed_once(offline: Offline) -> None:
    answer = _ask(offline, "POST", "/v1/videos", json={"prompt": "tea", "step": 1, "cfg": 2})
    assert answer.json()["error"]["message"].count("negative_prompt") == 1


def test_a_boundary_that_is_too_long_is_400(offline: Offline) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={'x' * 300}"}
    answer = _ask(offline, "POST", "/v1/videos", content=b"x", headers=headers)
    assert _error(answer) == (400, None, "body-form")


def test_a_body_that_is_announced_as_endless_is_not_waited_for(offline: Offline) -> None:
    headers = {"content-type": "application/json", "content-length": str(10**15)}
    answer = _ask(offline, "POST", "/v1/videos", content=b"{", headers=headers)
    assert _error(answer) == (413, "input_reference", "body-size")


def test_a_store_that_is_locked_is_503_with_the_seconds_to_wait(offline: Offline) -> None:
    holder = sqlite3.connect(offline.desk.settings.database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    answer = _ask(offline, "POST", "/v1/videos", json=TEA)
    holder.close()
    assert _error(answer) == (503, None, "store_busy")
    assert int(answer.headers["retry-after"]) > 0


def test_an_upload_over_the_bound_is_refused_and_not_kept(offline: Offline) -> None:
    files = {"input_reference": b"\x89PNG\r\n\x1a\n" + bytes(2 << 20)}
    answer = _ask(offline, "POST", "/v1/videos", data={"prompt": "tea"}, files=files)
    assert _error(answer) == (400, "input_reference", "upload-size")
    assert list(offline.settings.uploads.iterdir()) == []


def test_an_upload_is_what_it_holds_and_not_what_it_is_called(offline: Offline) -> None:
    files = {"input_reference": ("a.png", b"%PDF-1.7 and more", "image/png")}
    answer = _ask(offline, "POST", "/v1/videos", data={"prompt": "tea"}, files=files)
    assert _error(answer) == (400, "input_reference", "media-format")
    assert str(offline.settings.data) not in answer.text


def test_a_refused_request_leaves_no_upload(offline: Offline) -> None:
    files = {"input_reference": b"RIFF....WEBPVP8 "}
    _ask(offline, "POST", "/v1/videos", data={"prompt": "tea", "seed": "x"}, files=files)
    assert list(offline.settings.uploads.iterdir()) == []


def test_another_content_type_is_415(offline: Offline) -> None:
    answer = _ask(offline, "POST", "/v1/videos", content="prompt=tea")
    assert _error(answer) == (415, "Content-Type", "content-type")


def test_what_is_not_there_has_openais_shape_too(offline: Offline) -> None:
    assert _error(_ask(offline, "GET", "/v1/nothing")) == (404, None, "route")
    assert _error(_ask(offline, "PUT", "/v1/videos")) == (405, None, "route")
    assert _error(_ask(offline, "GET", "/v1/videos?limit=many")) == (400, "limit", "parameter")


def test_a_video_that_is_not_ready_has_no_content(offline: Offline) -> None:
    video_id = _ask(offline, "POST", "/v1/videos", json=TEA).json()["id"]
    answer = _ask(offline, "GET", f"/v1/videos/{video_id}/content")
    assert _error(answer) == (404, None, "not_ready")


def test_a_deleted_job_is_gone_from_the_queue(offline: Offline) -> None:
    video_id = _ask(offline, "POST", "/v1/videos", json=TEA).json()["id"]
    assert _ask(offline, "DELETE", f"/v1/videos/{video_id}").json()["deleted"]
    assert _error(_ask(offline, "DELETE", f"/v1/videos/{video_id}")) == (404, "video_id", "not_found")
    assert offline.desk.store.claim() is None


def test_health_tells_what_the_engine_last_said(offline: Offline) -> None:
    offline.engine.send({"state": "loading", "done": 3, "total": 9})
    offline.desk.hear()
    answer = _ask(offline, "GET", "/health")
    assert (answer.status_code, answer.json()) == (503, {"status": "loading", "done": 3, "total": 9})


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/models", "/metrics"])
def test_with_a_key_nothing_of_anybodys_is_told_without_it(
    offline_with: Callable[..., Offline], path: str
) -> None:
    server = offline_with(api_key="secret")
    assert _error(_ask(server, "GET", path)) == (401, "Authorization", "invalid_api_key")
    wrong = {"Authorization": "Bearer secre"}
    assert _ask(server, "GET", path, headers=wrong).status_code == 401
    right = {"Authorization": "Bearer secret"}
    assert _ask(server, "GET", path, headers=right).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Host": "example.org"},
        {"Host": "[::1"},
        {"Host": "127.0.0.1:abc"},
        {"Origin": "null"},
    ],
)
def test_without_a_key_other_sites_pages_are_refused(offline: Offline, headers: dict[str, str]) -> None:
    answer = _ask(offline, "POST", "/v1/videos", json=TEA, headers=headers)
    assert _error(answer) == (403, *headers, "foreign_origin")
    assert offline.desk.store.counts() == {}


def test_a_second_origin_is_looked_at_too(offline: Offline) -> None:
    headers = [("Origin", "http://127.0.0.1"), ("Origin", "https://example.org")]
    assert _error(_ask(offline, "GET", "/v1/models", headers=headers)) == (403, "Origin", "foreign_origin")


@pytest.mark.parametrize("path", ["/v1/videos?befor=x", "/v1/videos?limit=1&limit=2"])
def test_what_a_query_does_not_have_is_refused_by_its_name(offline: Offline, path: str) -> None:
    name = path.partition("?")[2].partition("=")[0]
    assert _error(_ask(offline, "GET", path)) == (400, name, "parameter")


def test_health_is_told_whatever_a_probe_appends(offline: Offline) -> None:
    assert _ask(offline, "GET", "/health?at=1").status_code == 503


def test_very_many_problems_are_not_all_told(offline: Offline) -> None:
    answer = _ask(
        offline, "POST", "/v1/videos", json={**TEA, "extra_params": dict.fromkeys(map(str, range(5000)))}
    )
    assert answer.status_code == 400
    assert len(answer.content) < 20_000


def test_the_document_says_where_a_key_goes(offline_with: Callable[..., Offline]) -> None:
    document = _ask(offline_with(api_key="secret"), "GET", "/openapi.json").json()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_the_log_says_for_whom_a_job_is(offline: Offline, capfd: pytest.CaptureFixture[str]) -> None:
    _ask(offline, "POST", "/v1/videos", json={**TEA, "user": "ann"})
    assert '"user": "ann"' in capfd.readouterr().err


def test_a_page_of_the_server_itself_may_ask(offline: Offline) -> None:
    own = {"Origin": "http://localhost:8000", "Host": "localhost:8000"}
    assert _ask(offline, "GET", "/v1/models", headers=own).status_code == 200


def test_health_needs_no_key(offline_with: Callable[..., Offline]) -> None:
    assert _ask(offline_with(api_key="secret"), "GET", "/health").status_code == 503


def test_half_a_surrogate_pair_in_a_name_is_refused_and_no_fault(offline: Offline) -> None:
    content = b'{"prompt": "tea", "\\ud800": 1}'
    headers = {"content-type": "application/json"}
    assert _ask(offline, "POST", "/v1/videos", content=content, headers=headers).status_code == 400


def test_more_pixels_than_the_server_makes_are_refused(offline_with: Callable[..., Offline]) -> None:
    server = offline_with(max_pixels=320 * 192)
    assert _error(_ask(server, "POST", "/v1/videos", json={**TEA, "size": "320x208"}))[:2] == (400, "size")
    assert _ask(server, "POST", "/v1/videos", json={**TEA, "size": "320x192"}).status_code == 200
