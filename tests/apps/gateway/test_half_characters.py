"""Escaped halves of characters, which agents in JavaScript make by cutting texts anywhere."""

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.bodies import mend_halves
from tests.apps.gateway.conftest import chat, only_exchange
from tests.fakes.engine import FakeEngine

CUT = "cut here \ud83d"
_SURROGATES = st.characters(categories=["Cs"])


def write(body: object) -> bytes:
    """Return it as JavaScript does: halves are escaped."""
    return json.dumps(body).encode()


@given(st.text(st.one_of(_SURROGATES, st.sampled_from('\\u"d8'), st.characters(exclude_categories=["Cs"]))))
def test_only_halves_are_changed(text: str) -> None:
    raw = write({text: text})
    whole = json.loads(raw)  # it joins what belongs together
    (expected,) = (re.sub("[\ud800-\udfff]", "\ufffd", name) for name in whole)

    assert json.loads(mend_halves(raw)) == {expected: expected}
    assert mend_halves(raw) == raw or expected not in whole


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(messages=[{"role": "user", "content": CUT}])),
        ("/v1/completions", {"model": "otter", "prompt": CUT}),
        ("/v1/responses", {"model": "otter", "input": CUT}),
        ("/v1/messages", {"model": "otter", "max_tokens": 5, "messages": [{"role": "user", "content": CUT}]}),
    ],
)
def test_a_half_is_a_replacement_character_to_the_model_and_in_the_pool(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    response = http.post(path, content=write(body))

    assert response.status_code == 200, response.text
    assert response.headers["x-claw-dropped"] == "half_characters"
    asked = engine.calls[-1].body
    assert (asked.get("prompt") or asked["messages"][-1]["content"]) == "cut here \ufffd"
    exchange = only_exchange()
    assert exchange.is_exact
    assert "cut here \ufffd" in json.dumps(json.loads(bytes(exchange.request)), ensure_ascii=False)


def test_whole_characters_and_backslashes_stay(http: httpx.Client, engine: FakeEngine) -> None:
    text = "\U0001f9a6 \\ud83d"
    response = http.post("/v1/chat/completions", content=write(chat(messages=[{"role": "user", "content": text}])))

    assert "x-claw-dropped" not in response.headers
    assert engine.calls[-1].body["messages"][-1]["content"] == text


def test_unkept_calls_mend_them_too(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.n_dimensions = 2
    body = {"model": "otter", "messages": [{"role": "user", "content": CUT}]}

    assert http.post("/v1/embeddings", content=write({"model": "otter", "input": CUT})).status_code == 200
    assert engine.counted[-1]["input"] == "cut here \ufffd"
    assert http.post("/v1/messages/count_tokens", content=write(body)).status_code == 200
    assert engine.counted[-1]["messages"][-1]["content"] == "cut here \ufffd"


def test_what_is_broken_besides_is_still_refused(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", content=write(CUT) + b"{")

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
