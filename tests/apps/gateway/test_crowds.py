"""A body of very many small things is refused before anybody walks through them: all other calls would wait."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from apps.gateway import bodies
from apps.gateway.bodies import mend_halves, refuse_crowd
from apps.gateway.errors import LONGEST_MESSAGE, ApiError
from apps.gateway.known_talks import KnownTalks
from apps.gateway.spelled_messages import SpelledReader
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import chat
from tests.apps.gateway.messages_client import ask
from tests.apps.gateway.test_refusals import assert_error

Json = dict[str, Any]
MANY = bodies.MOST_OBJECTS + 2


def responses(content: Any) -> Json:
    return {"model": "otter", "input": content}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(messages=[{"role": "user", "content": "x"}] * MANY)),
        ("/v1/completions", {"model": "otter", "prompt": [{"a": 1}] * MANY}),
        ("/v1/embeddings", {"model": "otter", "input": [{"a": 1}] * MANY}),
        ("/v1/responses", responses([{"role": "user", "content": "x"}] * MANY)),
        ("/v1/generate", {"prompt_ids": [1] * (bodies.MOST_ITEMS + 2)}),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_crowd_is_refused(http: httpx.Client, path: str, body: Json, separators: tuple[str, str]) -> None:
    response = http.post(path, content=json.dumps(body, separators=separators))

    assert "100,000 objects" in assert_error(response, status=413, code="request_too_large")
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_crowd_is_refused_in_anthropics_words(http: httpx.Client, path: str) -> None:
    response = http.post(path, json=ask(messages=[{"role": "user", "content": "x"}] * MANY))

    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


def test_it_does_not_matter_how_objects_are_spelled() -> None:
    for start in ('{"', '{ "', '{\n"', '{\t"', '{\r\n"'):
        with pytest.raises(ApiError):
            refuse_crowd(b"[%b]" % b",".join([f'{start}a":1}}'.encode()] * MANY))


def test_large_bodies_that_a_model_can_read_are_no_crowd() -> None:
    text = json.dumps([{"name": "a", "value": [1, 2, {}]}] * 60_000)  # as a tool's result: 240,000 commas
    ids = list(range(900_000))
    image = "data:image/png;base64," + "A" * 20_000_000
    for body in (chat(messages=[{"role": "user", "content": said}] * 2) for said in (text, image)):
        refuse_crowd(json.dumps(body).encode())
    refuse_crowd(json.dumps({"prompt": ids}).encode())
    refuse_crowd(json.dumps(chat(messages=[{"role": "user", "content": "hi, you"}] * 45_000)).encode())


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: refuse_crowd(b"[%b1]" % (b'{"":0},' * 4_000_000)),
        lambda: SpelledReader(["model"]).read(b'{"messages":[%b1]}' % (b'{"":0},' * 4_000_000), KnownTalks(), scope=""),
        lambda: mend_halves(rb'"\ud83d%b"' % (b"\\\\" * 14_000_000)),
        lambda: mend_halves(b"[%b]" % (b"[1]," * 7_000_000)),
    ],
)
def test_to_refuse_takes_no_time(refuse: Callable[[], object]) -> None:
    began = time.monotonic()
    with suppress(ApiError):
        refuse()
    assert time.monotonic() - began < 1.5  # walking through them takes several times as long


def test_messages_do_not_quote_what_is_long(http: httpx.Client) -> None:
    block = {"type": "y" * 200_000, "text": "x"}
    response = http.post("/v1/messages", json=ask(system=[block]))
    assert response.status_code == 400
    assert len(response.json()["error"]["message"]) == LONGEST_MESSAGE + 1

    response = http.get("/v1/" + "a" * 50_000)
    assert response.status_code == 404
    assert len(response.json()["error"]["message"]) == LONGEST_MESSAGE + 1


def test_many_prompts_are_counted_before_they_are_read(http: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": [[1]] * 300_000}),
        ("/v1/embeddings", {"input": [[1]] * 300_000}),
    ):
        response = http.post(path, json={"model": "otter", **body})
        assert_error(response, status=400, code=None, param="prompt" if "prompt" in body else "input")
