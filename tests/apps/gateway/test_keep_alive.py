"""Streams that have nothing to say for long: a comment keeps them alive, and what follows is told inside them."""

import json
from typing import Any

import httpx
import pytest
from pytest_django.fixtures import Settings

from apps.gateway import answers, keep_alive
from tests.apps.gateway.conftest import chat, only_exchange
from tests.apps.gateway.messages_client import ask
from tests.fakes.engine import FakeEngine

COMMENT = ": keep-alive"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(stream=True),
    "/v1/messages": ask(stream=True),
    "/v1/responses": {"model": "otter", "input": "hello", "stream": True},
    "/v1/completions": {"model": "otter", "prompt": "hello", "stream": True},
}
in_every_dialect = pytest.mark.parametrize("path", list(BODIES))


@pytest.fixture(autouse=True)
def short_breath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "EVERY_S", 0.02)
    monkeypatch.setattr(answers, "SILENCE_S", 0.1)
    monkeypatch.setattr(answers, "FIRST_SILENCE_S", 0.1)


@in_every_dialect
def test_a_silent_engine_is_bridged_by_comments(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    engine.script.first_pause_s = 0.3

    lines = http.post(path, json=BODIES[path]).text.splitlines()

    assert lines[0] == COMMENT
    said = [line for line in lines if line and not line.startswith((":", "event: "))]
    assert all(line.startswith("data: ") for line in said)
    assert "🦦" in "".join(said)
    assert only_exchange().is_exact


def test_a_pause_in_the_middle_is_bridged_too(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.pause_s = 0.15

    lines = http.post("/v1/chat/completions", json=chat(stream=True)).text.splitlines()

    assert lines[0].startswith("data: ")
    assert COMMENT in lines


@in_every_dialect
def test_a_failure_after_a_comment_is_told_in_the_stream(
    http: httpx.Client, engine: FakeEngine, settings: Settings, path: str
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.6})
    engine.script.failures = [503] * 20

    response = http.post(path, json=BODIES[path])

    assert response.status_code == 200
    lines = response.text.splitlines()
    assert lines[0] == COMMENT
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    (told,) = [event["error"] for event in events if event.get("error")]
    assert "cannot answer now" in told["message"]
    assert lines.count("data: [DONE]") == 0
    assert only_exchange().status == "error"
