"""A call that the client insists on is held to its tool's schema, in every dialect, unless it says otherwise."""

import json
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.gateway.forced_calls import hold_to_schemas
from tests.apps.gateway.conftest import chat, only_exchange
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "look"}}
NO_GRAMMAR = ["Invalid structural tag specification.", "Invalid grammar specification: 'triggers'"]  # vLLM's own words


def tool(**fields: Any) -> Json:
    return {"type": "function", "function": {"name": "look", "parameters": SCHEMA, **fields}}


def read_strict(engine: FakeEngine, *, call: int = -1) -> Any:
    return engine.calls[call].body["tools"][0]["function"].get("strict")


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("said", [{}, {"strict": None}, {"strict": True}, {"strict": False}], ids=str)
def test_a_tool_that_says_nothing_is_strict_when_a_call_is_insisted_on(choice: Any, said: Json) -> None:
    held = hold_to_schemas({"tools": [tool(**said), TOOL], "tool_choice": choice})
    assert held == [tool(strict=said.get("strict") is not False), tool(strict=True)]


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_call_that_the_model_may_leave_is_its_own(choice: str | None) -> None:
    assert hold_to_schemas({"tools": [TOOL], "tool_choice": choice}) is None
    assert hold_to_schemas({"tool_choice": choice}) is None


def test_what_says_all_by_itself_stays_as_it_is() -> None:
    assert hold_to_schemas({"tools": [tool(strict=False), tool(strict=True)], "tool_choice": "required"}) is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(tools=[TOOL], tool_choice="required")),
        (CHAT, chat(tools=[TOOL], tool_choice=NAMED, stream=True)),
        (
            RESPONSES,
            {
                "model": "otter",
                "input": "hi",
                "tools": [{"type": "function", "name": "look"}],
                "tool_choice": "required",
            },
        ),
        (
            MESSAGES,
            {
                "model": "otter",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"name": "look", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any"},
            },
        ),
    ],
    ids=["chat", "stream", "responses", "messages"],
)
def test_every_dialect_holds_it_and_says_so(http: httpx.Client, engine: FakeEngine, path: str, body: Json) -> None:
    engine.script.tool = {"name": "look", "arguments": {"where": "here"}}

    answer = http.post(path, json=body)

    assert answer.status_code == 200, answer.text
    assert read_strict(engine) is True
    assert answer.headers["x-claw-mended"] == "tools.strict"
    kept = only_exchange()
    assert json.loads(bytes(kept.request)) == body
    assert "tools.strict" in json.loads(bytes(kept.sampling))["mended"]


@pytest.mark.parametrize("refusal", NO_GRAMMAR)
def test_a_schema_that_the_engine_has_no_grammar_for_is_asked_without(
    http: httpx.Client, engine: FakeEngine, refusal: str
) -> None:
    engine.script.no_grammar = refusal

    answer = http.post(CHAT, json=chat(tools=[TOOL], tool_choice="required"))

    assert answer.status_code == 200, answer.text
    assert read_strict(engine) is None
    assert "x-claw-mended" not in answer.headers
    assert "mended" not in json.loads(bytes(only_exchange().sampling))


def test_a_client_that_wants_it_strict_is_told_that_there_is_no_grammar(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.no_grammar = NO_GRAMMAR[0]

    answer = http.post(CHAT, json=chat(tools=[tool(strict=True)], tool_choice="required"))

    assert (answer.status_code, engine.calls) == (400, [])


def test_a_provider_is_asked_as_the_client_asks(http: httpx.Client, key: ApiKey, engine: FakeEngine) -> None:
    provider = ProviderFactory.create(project=key.agent.project, base_url=f"{engine.url}/v1")
    TeacherFactory.create(engine=provider, name="big-one")

    assert http.post(CHAT, json=chat(model="big-one", tools=[TOOL], tool_choice="required")).status_code == 200

    assert read_strict(engine) is None
