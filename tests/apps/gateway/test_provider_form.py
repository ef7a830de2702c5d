"""What providers are sent: OpenAI's fields and no others, in every dialect; the `openai` package is the referee."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types import EmbeddingCreateParams, completion_create_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

from apps.accounts.models import ApiKey
from apps.gateway.errors import ApiError
from apps.gateway.provider_form import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    MESSAGE_FIELDS,
    STREAM_OPTIONS,
    make_provider_body,
)
from apps.registry.models import Teacher
from apps.trajectories.models import Exchange
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.conftest import chat, only_exchange
from tests.apps.gateway.messages_client import WEATHER, ask
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
CHAT, MESSAGES, RESPONSES, COMPLETIONS = (
    f"/v1/{name}" for name in ("chat/completions", "messages", "responses", "completions")
)


def make(**fields: Any) -> tuple[Json, Json]:
    body = chat(**fields)
    return make_provider_body(body, asked=body)


def known_to(*shapes: type) -> set[str]:
    return {name for shape in shapes for name in shape.__annotations__}


def test_the_tables_hold_nothing_that_openai_does_not_know() -> None:
    assert known_to(chat_create_params.CompletionCreateParamsBase) | {"stream"} >= CHAT_FIELDS
    assert known_to(completion_create_params.CompletionCreateParamsBase) | {"stream"} >= COMPLETION_FIELDS
    assert known_to(EmbeddingCreateParams) >= EMBEDDING_FIELDS
    assert known_to(ChatCompletionStreamOptionsParam) == STREAM_OPTIONS
    messages = (ChatCompletionAssistantMessageParam, ChatCompletionToolMessageParam, ChatCompletionUserMessageParam)
    assert known_to(*messages) >= MESSAGE_FIELDS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 20),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("continue_final_message", True),
        ("add_generation_prompt", False),
        ("skip_special_tokens", False),
        ("stop_token_ids", [2]),
        ("min_tokens", 5),
        ("ignore_eos", True),
        ("structured_outputs", {"choice": ["a", "b"]}),
        ("brand_new", {"a": 1}),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        make(**{name: value})

    assert (refused.value.status, refused.value.param) == (400, name)
    assert f"`{name}`" in refused.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", -1),
        ("top_k", 0),
        ("min_p", 0),
        ("repetition_penalty", 1.0),
        ("skip_special_tokens", True),
        ("add_generation_prompt", True),
        ("ignore_eos", False),
        ("stop_token_ids", []),
        ("chat_template_kwargs", {}),
        ("modalities", ["text"]),
    ],
)
def test_what_asks_for_nothing_is_left_out(name: str, value: Any) -> None:
    assert make(**{name: value}) == (chat(), {})


def test_what_the_answer_does_not_depend_on_is_left_out_and_told() -> None:
    sent, dropped = make(return_token_ids=True, priority=3)

    assert sent == chat()
    assert set(dropped) == {"return_token_ids", "priority"}


def test_messages_and_tools_hold_what_openai_knows() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look"}}
    messages: list[Json] = [
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": "hi", **mark}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "annotations": []},
        {"role": "tool", "tool_call_id": "call1", "content": "x", **mark},
    ]

    sent, dropped = make(messages=messages, tools=[{**tool, **mark}], stream_options={"continuous_usage_stats": True})

    assert sent["messages"] == [
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call1", "content": "x"},
    ]
    assert sent["tools"] == [tool]
    assert sent["stream_options"] == {}
    assert set(dropped) == {"messages.reasoning_content", "messages.cache_control"}
    assert "reasoning_content" in messages[1]


@pytest.fixture
def elsewhere() -> Iterator[FakeEngine]:
    with FakeEngine() as server:
        yield server


@pytest.fixture
def teacher(key: ApiKey, elsewhere: FakeEngine) -> Teacher:
    provider = ProviderFactory.create(project=key.agent.project, base_url=f"{elsewhere.url}/v1")
    return TeacherFactory.create(engine=provider, name="big-one", model="vendor/big-1")


THOUGHT: Json = {"type": "thinking", "thinking": "hm", "signature": "x"}
HISTORY: list[Json] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "yes?"}]},
    {"role": "user", "content": "how many?"},
]


@pytest.mark.parametrize(
    ("path", "body", "dropped"),
    [
        (CHAT, chat(reasoning_effort="low", top_k=-1), ""),
        (
            MESSAGES,
            ask(messages=HISTORY, tools=[WEATHER], thinking={"type": "adaptive"}),
            "thinking, messages.reasoning_content",
        ),
        (RESPONSES, {"model": "", "input": "hello", "reasoning": {"effort": "low"}}, ""),
        (COMPLETIONS, {"model": "", "prompt": "hello", "n": 2}, ""),
    ],
    ids=["chat", "messages", "responses", "completions"],
)
def test_every_dialect_reaches_a_teacher(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client, path: str, body: Json, dropped: str
) -> None:
    response = http.post(path, json=body | {"model": "big-one"})

    assert response.status_code == 200, response.text
    (call,) = elsewhere.calls
    assert call.body.keys() <= (COMPLETION_FIELDS if path == COMPLETIONS else CHAT_FIELDS)
    assert "logprobs" not in call.body
    assert all(message.keys() <= MESSAGE_FIELDS for message in call.body.get("messages", []))
    assert response.headers.get("x-claw-dropped", "") == dropped
    assert not only_exchange().is_exact


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_clients_call_their_fields_makes_no_header(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client, *, is_streamed: bool
) -> None:
    odd = ["a\r\nset-cookie: b=c", "otter 🦦", "nul\0", "x" * 5000, *(f"n{number}" for number in range(100))]
    message = {"role": "user", "content": "hello"} | dict.fromkeys(odd, 1)

    response = http.post(CHAT, json=chat(model="big-one", messages=[message], stream=is_streamed))

    assert response.status_code == 200, response.text
    assert "set-cookie" not in response.headers
    told = response.headers["x-claw-dropped"].split(", ")
    assert len(told) == 10
    assert all(name.startswith("messages.") and name.isascii() for name in told)
    exchange = only_exchange()
    assert exchange.status == "complete"
    fold_pending()
    assert not Exchange.objects.set_aside().exists()


def test_log_probs_of_a_completion_are_asked_for_when_the_client_wants_them(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client
) -> None:
    http.post(COMPLETIONS, json={"model": "big-one", "prompt": "hello", "logprobs": 0})

    assert elsewhere.calls[0].body["logprobs"] == 0


def test_log_probs_of_a_response_are_asked_for_when_the_client_wants_them(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client
) -> None:
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    http.post(RESPONSES, json={"model": "big-one", "input": "hello", **include})

    assert (elsewhere.calls[0].body["logprobs"], elsewhere.calls[0].body["top_logprobs"]) == (True, 2)


def test_embeddings_are_asked_for_in_openais_words(teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client) -> None:
    elsewhere.script.n_dimensions = 4
    body = {"model": "big-one", "input": "hello", "dimensions": 2, "encoding_format": "base64", "user": "ada"}

    assert http.post("/v1/embeddings", json=body).status_code == 200
    assert elsewhere.counted[0].keys() <= EMBEDDING_FIELDS
    refused = http.post("/v1/embeddings", json=body | {"truncate_prompt_tokens": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, chat(top_k=5), "top_k"),
        (MESSAGES, ask(top_k=5), "top_k"),
        (MESSAGES, ask(messages=[{"role": "assistant", "content": "It is ("}]), "messages"),
        (RESPONSES, {"input": "hello", "min_p": 0.5}, "min_p"),
        (COMPLETIONS, {"prompt": "hello", "top_k": 5}, "top_k"),
        ("/v1/generate", {"prompt_ids": [1, 2]}, "model"),
    ],
)
def test_a_refusal_is_in_the_callers_dialect(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client, path: str, body: Json, named: str
) -> None:
    response = http.post(path, json=body | {"model": "big-one"})

    assert response.status_code == 400
    error = response.json()["error"]
    assert named in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error.get("param") == (None if path == MESSAGES else named)
    assert elsewhere.calls == []
