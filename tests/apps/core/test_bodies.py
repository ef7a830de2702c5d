"""Bodies before Django: a measure, a time, and words for who goes past them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apps.core import bodies
from apps.core.bodies import BoundedBodies

Send = Callable[[Any], Awaitable[None]]
PAGE, REST, FILES = "/login/", "/api/v1/runs", "/api/v1/imports"


async def ask(path: str, *parts: bytes | None, length: int | None = None) -> tuple[list[Any], list[bytes]]:
    """Send the parts, of which None stands for a pause without end; return what was answered, and what came through."""
    taken, answers = [], []
    coming = list(parts)

    async def receive() -> Any:
        if not coming:
            return {"type": "http.disconnect"}
        part = coming.pop(0)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": bool(coming)}

    async def send(message: Any) -> None:
        answers.append(message)

    async def app(_scope: Any, receive: Callable[[], Awaitable[Any]], _send: Send) -> None:
        has_more = True
        while has_more:
            message = await receive()
            taken.append(message["body"])
            has_more = message["more_body"]
        assert (await receive())["type"] == "http.disconnect"

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    await BoundedBodies(app)({"type": "http", "path": path, "headers": headers}, receive, send)
    return answers, taken


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LARGE_BODY_BYTES", 10)
    monkeypatch.setattr(bodies, "FILE_BYTES", 20)
    monkeypatch.setattr(bodies, "IDLE_S", 0.05)


@pytest.mark.parametrize(("path", "most"), [(PAGE, 10), (REST, 10), (FILES, 20), ("/p/sample/imports", 20)])
async def test_a_body_has_a_measure(path: str, most: int) -> None:
    assert await ask(path, b"x" * (most - 1), b"x") == ([], [b"x" * (most - 1), b"x"])
    answers, taken = await ask(path, b"x" * most, b"x")
    assert (answers[0]["status"], taken) == (413, [b"x" * most])
    assert (b"connection", b"close") in answers[0]["headers"]
    answers, taken = await ask(path, b"x", length=most + 1)
    assert (answers[0]["status"], taken) == (413, [])


async def test_a_body_that_does_not_go_on_is_ended() -> None:
    answers, taken = await ask(PAGE, b"x", None)
    assert (answers[0]["status"], taken) == (408, [b"x"])


async def test_rest_is_told_in_its_own_shape() -> None:
    start, body = (await ask(REST, b"x" * 11))[0]
    assert (b"content-type", b"application/problem+json") in start["headers"]
    told = json.loads(body["body"])
    assert (told["status"], told["code"]) == (413, "request_too_large")
