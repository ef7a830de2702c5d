"""Bodies that name a member twice: the last one counts, for us, for the pool and for whoever answers."""

import json
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.gateway.spelled_messages import SHORTEST
from apps.registry.models import Teacher
from apps.trajectories.messages import text_of
from apps.trajectories.models import Step
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_steps
from tests.apps.gateway.conftest import only_exchange
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.fakes.engine import FakeEngine

TWICE = (
    b'"model": "theirs", "stream": true, "n": 3, "logprobs": true, "top_logprobs": 9, "user": "a", "max_tokens": 9,'
    b' "model": "otter", "stream": false, "n": 1, "logprobs": null, "top_logprobs": null, "user": "b", "max_tokens": 5'
)
MESSAGES = b'"messages": [{"role": "system", "role": "user", "content": "%b", "content": "%b"}]'
LONG = b"otter " * (SHORTEST // 5)
SAID = LONG.decode()


def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Read an object as a parser would that takes no name twice."""
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), names
    return dict(pairs)


def read_outer(raw: bytes) -> dict[str, Any]:
    """Return the body; fail where one of its own members is named twice."""
    pairs = json.loads(raw, object_pairs_hook=list)
    refuse_twice(pairs)
    body: dict[str, Any] = json.loads(raw)
    return body


@pytest.mark.parametrize("words", [b"hi", LONG])
def test_an_engine_hears_the_last_and_no_other(http: httpx.Client, engine: FakeEngine, words: bytes) -> None:
    raw = b'{"messages": [], %b, %b}' % (TWICE, MESSAGES % (b"not this", words))
    response = http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"]) == 1
    (call,) = engine.calls
    body = read_outer(call.raw)
    assert (body["model"], body["max_tokens"], body.get("n", 1)) == ("tiny", 5, 1)
    assert not body.get("stream")
    assert body["messages"] == [{"role": "user", "content": words.decode()}]
    assert bytes(only_exchange().request) == raw
    fold_pending()
    (view,) = load_steps(Step.objects.get().trajectory)
    assert list(map(text_of, view.messages)) == [words.decode()]


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("completions", b'"prompt": "a", "prompt": "b"'),
        ("messages", b'"max_tokens": 9, "max_tokens": 5, "messages": [], ' + MESSAGES % (b"a", b"b")),
        ("responses", b'"input": "a", "input": "b"'),
    ],
)
def test_so_do_the_engines_of_other_dialects(http: httpx.Client, engine: FakeEngine, path: str, members: bytes) -> None:
    outer = b'"model": "theirs", "model": "otter", "stream": true, "stream": false'
    response = http.post(f"/v1/{path}", content=b"{%b, %b}" % (outer, members))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    (call,) = engine.calls
    body = json.loads(call.raw, object_pairs_hook=refuse_twice)
    assert body["model"] == "tiny"
    assert body.get("prompt", "b") == "b"
    assert all(message["content"] == "b" for message in body.get("messages", ()))


def test_a_provider_is_sent_no_name_twice_wherever_it_stands(
    http: httpx.Client, engine: FakeEngine, key: ApiKey
) -> None:
    """Who answers may read the first of two where the pool has the last."""
    teacher: Teacher = TeacherFactory.create(
        name="theirs", engine=ProviderFactory.create(project=key.agent.project, base_url=f"{engine.url}/v1")
    )
    raw = b'{"model": "%b", %b}' % (teacher.name.encode(), MESSAGES % (b"not this", LONG))
    assert http.post("/v1/chat/completions", content=raw).status_code == 200
    body = json.loads(engine.calls[0].raw, object_pairs_hook=refuse_twice)
    assert body["messages"] == [{"role": "user", "content": SAID}]
