"""Responses through a real server: what the client gets, what the engine is asked, what the pool keeps."""

import json

import httpx
import pytest

from apps.accounts.models import ApiKey, Project
from apps.trajectories.models import Exchange, ExchangeStatus
from tests.apps.gateway.conftest import only_exchange, wait_until
from tests.apps.gateway.responses import (
    AGENTS,
    LOOK,
    PATCH,
    PATH,
    Json,
    ask,
    ask_for,
    check_events,
    check_response,
    kinds,
    read_typed_events,
    text_of,
)
from tests.apps.gateway.test_chat import assert_exact
from tests.conftest import OTHER_SECRET
from tests.factories.registry import AliasFactory, VersionFactory
from tests.fakes.engine import FakeEngine

both = pytest.mark.parametrize("is_streamed", [False, True])


@both
def test_an_answer_is_told_in_items_and_kept_exactly(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    response = ask(
        http,
        stream=is_streamed,
        instructions="Be brief.",
        metadata={"order": "17"},
        temperature=0.7,
        max_output_tokens=50,
        prompt_cache_key="thread-1",
    )

    (message,) = response["output"]
    assert message["content"] == [
        {"type": "output_text", "text": "Hello 🦦 you", "annotations": [], "logprobs": []},
    ]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    assert (response["object"], response["status"]) == ("response", "completed")
    assert (response["model"], response["instructions"]) == ("otter", "Be brief.")
    assert (response["metadata"], response["temperature"]) == ({"order": "17"}, 0.7)
    assert (response["tools"], response["tool_choice"]) == ([], "auto")
    assert response["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    }
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert (exchange.dialect, exchange.response_id) == ("responses", response["id"])
    assert (exchange.session_key, exchange.is_streamed) == ("thread-1", is_streamed)
    assert json.loads(bytes(exchange.response or b"")) == response
    assert json.loads(bytes(exchange.chat_request or b"")) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    }
    kept = json.loads(bytes(exchange.chat_response or b""))
    assert kept["choices"][0]["message"]["content"] == "Hello 🦦 you"


def test_the_engine_is_asked_in_its_own_words(http: httpx.Client, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    ask(
        http,
        text={"format": {"type": "json_schema", "name": "P", "schema": schema, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=77,
        top_k=5,
        stop=["END"],
        tools=[{**LOOK, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
        client_metadata={"session_id": "s"},
        store=False,
    )

    body = engine.calls[-1].body
    assert body.pop("return_token_ids")
    assert body.pop("logprobs")
    assert body == {
        "model": body["model"],
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [
            {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}},
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_completion_tokens": 77,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "P", "schema": schema, "strict": True}},
        "top_k": 5,
        "stop": ["END"],
    }


def test_a_json_object_may_be_asked_for(http: httpx.Client, engine: FakeEngine) -> None:
    response = ask(http, text={"format": {"type": "json_object"}})
    assert engine.calls[-1].body["response_format"] == {"type": "json_object"}
    assert response["text"] == {"format": {"type": "json_object"}}


def test_the_events_of_a_text_come_in_order(http: httpx.Client) -> None:
    events = read_typed_events(http.post(PATH, json=ask_for(stream=True)))
    check_events(events)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []


@both
def test_thoughts_are_an_item_of_their_own(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    engine.script.reasoning = "Who is it?"
    response = ask(http, stream=is_streamed)

    thought, message = response["output"]
    assert thought["summary"] == []
    assert thought["content"] == [{"type": "reasoning_text", "text": "Who is it?"}]
    assert "encrypted_content" not in thought
    assert text_of(message) == "Hello 🦦 you"


@both
def test_a_summary_is_given_and_sealed_thoughts_come_back(
    http: httpx.Client, engine: FakeEngine, is_streamed: bool
) -> None:
    engine.script.reasoning = "Who is it?"
    fields: Json = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    thought, message = ask(http, stream=is_streamed, **fields)["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Who is it?"}]
    assert "content" not in thought

    # OpenClaw keeps nothing else of it.
    kept = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    ask(http, input=[{"role": "user", "content": "hi"}, kept, message, {"role": "user", "content": "and?"}], **fields)

    assert engine.calls[-1].body["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello 🦦 you", "reasoning_content": "Who is it?"},
        {"role": "user", "content": "and?"},
    ]


def test_no_other_team_can_have_sealed_thoughts_read(
    http: httpx.Client, engine: FakeEngine, other_key: ApiKey, other_project: Project
) -> None:
    AliasFactory.create(version=VersionFactory.create(policy__project=other_project, policy__slug="theirs"))
    engine.script.reasoning = "Who is it?"
    thought, message = ask(http, include=["reasoning.encrypted_content"])["output"]

    stolen = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    body = {"model": "theirs", "input": [stolen, message, {"role": "user", "content": "and?"}]}
    response = http.post(PATH, json=body, headers={"Authorization": f"Bearer {OTHER_SECRET}"})

    assert response.status_code == 200, response.text
    assert response.headers["x-claw-dropped"] == "input[0].encrypted_content"
    assert "Who is it?" not in json.dumps(engine.calls[-1].body)


def test_the_events_of_a_summary_come_in_order(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.reasoning = "Who is it?"
    events = read_typed_events(http.post(PATH, json=ask_for(stream=True, reasoning={"summary": "auto"})))
    check_events(events)
    assert kinds(events)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]


def test_thought_tokens_are_counted(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.reasoning = "Hello"  # the fake's tokens are those of its text: the first two of five
    response = ask(http)
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


@both
def test_parallel_calls_are_items_with_ids_that_survive(
    http: httpx.Client, engine: FakeEngine, is_streamed: bool
) -> None:
    engine.script.tool = {"name": "look", "arguments": {"where": "here"}}
    engine.script.more_tools = [{"name": "look", "arguments": {"where": "thére"}}]
    response = ask(http, stream=is_streamed, tools=[LOOK])

    first, second = response["output"]
    assert (first["type"], first["name"]) == ("function_call", "look")
    assert json.loads(first["arguments"]) == {"where": "here"}
    assert json.loads(second["arguments"]) == {"where": "thére"}
    assert first["call_id"].isalnum()
    assert first["call_id"] != second["call_id"]
    assert response["status"] == "completed"
    kept = json.loads(bytes(only_exchange().chat_response or b""))
    calls = kept["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == [first["call_id"], second["call_id"]]


def test_calls_are_told_one_after_the_other(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "look", "arguments": {"where": "here"}}
    engine.script.more_tools = [{"name": "look", "arguments": {}}]
    events = read_typed_events(http.post(PATH, json=ask_for(stream=True, tools=[LOOK])))
    check_events(events)
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds(events) == ["created", "in_progress", *call, *call, "completed"]


@both
def test_a_freeform_tool_is_called_with_its_text(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    patch = '*** Begin\n+"é\t🦦"\n'
    engine.script.tool = {"name": "patch", "arguments": {"input": patch}}
    response = ask(http, stream=is_streamed, tools=[PATCH], tool_choice={"type": "custom", "name": "patch"})

    (call,) = response["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", patch)
    asked = engine.calls[-1].body
    assert asked["tools"][0]["function"]["parameters"]["required"] == ["input"]
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "patch"}}

    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    engine.script.tool = None
    ask(http, input=[{"role": "user", "content": "hi"}, call, output], tools=[PATCH])
    _, said, told = engine.calls[-1].body["messages"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"input": patch}
    assert told == {"role": "tool", "tool_call_id": call["call_id"], "content": "done"}


def test_a_freeform_text_streams_as_it_is_written(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "patch", "arguments": {"input": "one two three four"}}
    events = read_typed_events(http.post(PATH, json=ask_for(stream=True, tools=[PATCH])))
    check_events(events)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 2
    assert kinds(events)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]


@both
def test_a_function_of_a_namespace_is_called_by_both_names(
    http: httpx.Client, engine: FakeEngine, is_streamed: bool
) -> None:
    engine.script.tool = {"name": "agents__close", "arguments": {}}
    response = ask(http, stream=is_streamed, tools=[AGENTS])

    (call,) = response["output"]
    assert (call["namespace"], call["name"]) == ("agents", "close")
    assert response["tools"] == [AGENTS]
    engine.script.tool = None
    ask(http, input=[call, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}])
    said = engine.calls[-1].body["messages"][0]
    assert said["tool_calls"][0]["function"]["name"] == "agents__close"


@both
def test_what_is_cut_by_the_limit_is_incomplete(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    engine.script.finish_reason = "length"
    response = ask(http, stream=is_streamed)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert only_exchange().status == ExchangeStatus.COMPLETE


@both
def test_an_empty_answer_is_an_empty_message(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    engine.script.pieces = []
    (message,) = ask(http, stream=is_streamed)["output"]
    assert [part["text"] for part in message["content"]] == [""]


@both
def test_logprobs_are_shown_to_those_who_ask(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    response = ask(http, stream=is_streamed, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = response["output"][0]["content"]
    assert [item["token"] for item in part["logprobs"]] == ["Hel", "lo", " 🦦", " you"]
    assert [item["logprob"] for item in part["logprobs"]] == pytest.approx(engine.calls[-1].choices[0].logprobs[:4])
    assert engine.calls[-1].body["top_logprobs"] == 2
    assert_exact(only_exchange(), engine)


def test_a_stream_that_breaks_says_so_twice(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.error_after = 3
    events = read_typed_events(http.post(PATH, json=ask_for(stream=True)))

    error, failed = events[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert "the engine core died" in error["message"]
    assert error["error"]["type"] == "server_error"
    response = failed["response"]
    check_response(response)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert text_of(response["output"][0]) == "Hello"
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    assert json.loads(bytes(exchange.response or b"")) == response


def test_what_an_aborted_stream_had_said_is_kept_under_the_same_ids(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.pieces = ["word "] * 200
    engine.script.pause_s = 0.02
    with http.stream("POST", PATH, json=ask_for(stream=True)) as answer:
        lines = answer.iter_lines()
        added = next(
            json.loads(line[6:]) for line in lines if '"response.output_item.added"' in line and "data" in line
        )
    wait_until(lambda: Exchange.objects.filter(status=ExchangeStatus.ABORTED).exists())

    response = json.loads(bytes(only_exchange().response or b""))
    check_response(response)
    (message,) = response["output"]
    assert message["id"] == added["item"]["id"]
    assert (response["status"], message["status"]) == ("cancelled", "incomplete")


def test_an_engines_refusal_is_told_in_its_own_words(http: httpx.Client) -> None:
    answer = http.post(PATH, json=ask_for(input="x" * 30_000))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_hosted_tools_and_unmet_wishes_are_left_out_and_told(http: httpx.Client, engine: FakeEngine) -> None:
    search = {"type": "web_search", "external_web_access": False}
    wishes = {"context_management": [{"type": "compaction", "compact_threshold": 9000}], "seed": 3}
    answer = http.post(PATH, json=ask_for(tools=[LOOK, search], tool_choice="auto", **wishes))
    assert answer.status_code == 200
    assert answer.headers["x-claw-dropped"] == "tools[1]:web_search, context_management, seed"
    assert check_response(answer.json())["tools"] == [LOOK]
    body = engine.calls[-1].body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look"]
    assert "context_management" not in body


def test_without_tools_there_is_nothing_to_choose(http: httpx.Client, engine: FakeEngine) -> None:
    ask(http, tools=[], tool_choice="auto", parallel_tool_calls=True)  # Codex, when it compacts
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & engine.calls[-1].body.keys()


def test_only_allowed_tools_are_shown(http: httpx.Client, engine: FakeEngine) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "close"}]}
    response = ask(http, tools=[LOOK, AGENTS], tool_choice=choice)
    body = engine.calls[-1].body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["agents__close"]
    assert body["tool_choice"] == "required"
    assert response["tool_choice"] == choice


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": {}}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": {}}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"instructions": ["x"]}, "instructions"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 30}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": {}}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**LOOK, "parameters": "any"}]}, "tools[0].parameters"),
        ({"tools": [LOOK, LOOK]}, "tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "leap"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, fields: Json, param: str
) -> None:
    answer = http.post(PATH, json=ask_for(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"] or error["code"] == "item_not_found"
    assert engine.calls == []


def test_the_door_is_the_same_as_for_chat(http: httpx.Client, gateway: object) -> None:
    assert http.get(PATH).status_code == 405
    assert http.post(PATH, content=b"{").json()["error"]["code"] == "invalid_json"
    assert http.post(PATH, json=ask_for(model="gpt-5")).json()["error"]["code"] == "model_not_found"
    stranger = http.post(PATH, json=ask_for(), headers={"Authorization": "Bearer claw-no"})
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (401, "invalid_api_key")


def test_the_row_is_there_when_the_stream_ends(http: httpx.Client) -> None:
    """Read on another connection at the very moment that the last item and the end have come."""
    for _ in range(10):
        with http.stream("POST", PATH, json=ask_for(stream=True)) as answer:
            for line in answer.iter_lines():
                if line in {"event: response.output_item.done", "event: response.completed"}:
                    assert Exchange.objects.filter(id=answer.headers["x-request-id"]).exists()
