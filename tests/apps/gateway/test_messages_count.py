"""Counting tokens: the engine's own count of the prompt that a call would have; nothing of it is kept."""

from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange
from tests.apps.gateway.messages_client import COUNT_PATH, PATH, WEATHER, ask
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.fakes.engine import FakeEngine


def test_the_engine_counts_the_prompt_that_it_would_be_asked(http: httpx.Client, engine: FakeEngine) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    fields: dict[str, Any] = {
        "system": "You see.",
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "yes?"}]},
            {"role": "user", "content": "how many?"},
        ],
    }

    response = http.post(COUNT_PATH, json={"model": "otter", **fields})
    http.post(PATH, json=ask(**fields))

    assert response.json() == {"input_tokens": 140}
    (counted,) = engine.counted
    asked = engine.calls[0].body
    assert counted["model"] == "tiny"
    assert counted["tools"] == asked["tools"]
    assert counted["add_generation_prompt"] is True
    # /tokenize does not know the name under which a chat completion takes reasoning.
    renamed = [{**message, "reasoning": message.get("reasoning_content")} for message in asked["messages"]]
    assert [{"reasoning": None, **message} for message in counted["messages"]] == [
        {name: value for name, value in message.items() if name != "reasoning_content"} for message in renamed
    ]
    assert response.headers["request-id"]


def test_switches_of_the_template_count_too(http: httpx.Client, engine: FakeEngine) -> None:
    config = {"output_config": {"effort": "low"}}

    http.post(COUNT_PATH, json=ask(**config))
    http.post(COUNT_PATH, json=ask(**config, thinking={"type": "disabled"}))

    switches = [body["chat_template_kwargs"] for body in engine.counted]
    assert switches[0] == {"reasoning_effort": "low", "enable_thinking": True}
    assert switches[1] == {"reasoning_effort": "low", "enable_thinking": False}
    assert "reasoning_effort" not in engine.counted[0]


def test_a_begun_answer_is_counted_as_it_is(http: httpx.Client, engine: FakeEngine) -> None:
    begun = [{"role": "user", "content": "Sun?"}, {"role": "assistant", "content": "It is ("}]

    http.post(COUNT_PATH, json={"model": "otter", "messages": begun})

    assert engine.counted[0]["continue_final_message"] is True
    assert engine.counted[0]["add_generation_prompt"] is False


def test_nothing_of_it_is_kept(http: httpx.Client) -> None:
    assert http.post(COUNT_PATH, json=ask()).status_code == 200
    assert http.post(PATH, json=ask()).status_code == 200

    assert Exchange.objects.count() == 1  # the call's own


@pytest.mark.parametrize("failures", [[503], [500, 429]])
def test_a_passing_fault_is_never_seen(http: httpx.Client, engine: FakeEngine, failures: list[int | str]) -> None:
    engine.script.failures = failures

    assert http.post(COUNT_PATH, json=ask()).status_code == 200


def test_an_engines_refusal_is_passed_on(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.failures = [422]

    response = http.post(COUNT_PATH, json=ask())

    assert response.status_code == 422
    assert response.json()["error"] == {"type": "invalid_request_error", "message": "overloaded"}


def test_a_providers_tokens_are_not_counted(http: httpx.Client, key: ApiKey, engine: FakeEngine) -> None:
    provider = ProviderFactory.create(project=key.agent.project, base_url=f"{engine.url}/v1")
    TeacherFactory.create(engine=provider, name="big-one")

    response = http.post(COUNT_PATH, json=ask(model="big-one"))

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    assert "big-one" in response.json()["error"]["message"]
    assert engine.counted == []
