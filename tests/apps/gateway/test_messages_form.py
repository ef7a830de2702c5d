"""What Anthropic's requests become in chat form, and which are refused, by name. Nothing is asked of an engine here."""

from typing import Any

import orjson
import pytest

from apps.gateway.errors import ApiError
from apps.gateway.messages.shapes import read_count_request, read_messages_request
from tests.apps.gateway.messages_client import ask

Json = dict[str, Any]
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGE_PART: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MARK: Json = {"cache_control": {"type": "ephemeral"}}
CALL: Json = {"type": "tool_use", "id": "call0123456789abcdef01234567", "name": "look", "input": {"at": [1, "é"]}}
LOOK: Json = {"name": "look", "input_schema": {"type": "object"}}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def result(content: Any = None, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "call1", "content": content, **fields}


def user(*blocks: Json) -> list[Json]:
    return [{"role": "user", "content": list(blocks)}]


def render(**fields: Any) -> Json:
    return read_messages_request(orjson.dumps(ask(**fields))).engine_body


def render_messages(messages: list[Json], **fields: Any) -> list[Json]:
    """Return the chat messages, which are the same for the engine, for the pool and for counting."""
    request = read_messages_request(orjson.dumps(ask(messages=messages, **fields)))
    assert request.chat_form is not None
    assert request.chat_form["messages"] == request.engine_body["messages"]
    _, counted = read_count_request(orjson.dumps({"model": "otter", "messages": messages, **fields}))
    assert counted["messages"] == request.engine_body["messages"]
    return list(request.engine_body["messages"])


def refuse(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_messages_request(orjson.dumps(ask(**fields)))
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("content", ["hi", [text("hi")], [text("hi", **MARK)], [text(""), text("hi")]])
def test_a_string_and_a_block_are_the_same(content: Any) -> None:
    assert render_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": "hi"}]


def test_several_texts_stay_apart_and_pictures_keep_their_place() -> None:
    (message,) = render_messages(user(text("a", **MARK), IMAGE, text("b")))

    assert message["content"] == [text("a"), IMAGE_PART, text("b")]


def test_a_picture_may_be_an_address() -> None:
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}

    (message,) = render_messages(user(picture))

    assert message["content"] == [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]


@pytest.mark.parametrize("system", ["You see.\n\nYou hear.", [text("You see.", **MARK), text("You hear.")]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    messages = render_messages(user(text("hi")), system=system)

    assert messages[0] == {"role": "system", "content": "You see.\n\nYou hear."}


def test_claude_codes_bill_is_not_shown_to_the_model() -> None:
    bill = text("x-anthropic-billing-header: cc_version=2.1.332.da8; cc_entrypoint=sdk-cli;")

    assert render_messages(user(text("hi")), system=[bill, text("You see.")])[0]["content"] == "You see."
    assert render_messages(user(text("hi")), system=[bill]) == [{"role": "user", "content": "hi"}]


def test_system_messages_keep_their_place_among_the_others() -> None:
    later = {"role": "system", "content": [text("It is Tuesday.", **MARK)]}
    first = {"role": "user", "content": "hi"}

    messages = render_messages([first, later, {"role": "assistant", "content": "yes?"}, first], system="You see.")

    assert [message["role"] for message in messages] == ["system", "user", "system", "assistant", "user"]
    assert messages[2]["content"] == "It is Tuesday."


def test_an_assistants_blocks_are_one_message() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "bXNn"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    blocks = [thought, hidden, text("I "), text("look."), CALL, {**CALL, "id": "toolu_2", "input": {}}]

    message = render_messages([{"role": "assistant", "content": blocks}, *user(result("x"))])[0]

    call, other = message["tool_calls"]
    assert message["content"] == "I look."
    assert message["reasoning_content"] == "hm"
    assert call["id"] == CALL["id"]
    assert orjson.loads(call["function"]["arguments"]) == CALL["input"]
    assert (other["id"], other["function"]) == ("toolu_2", {"name": "look", "arguments": "{}"})


def test_calls_without_text_have_no_content() -> None:
    message = render_messages([{"role": "assistant", "content": [CALL]}, *user(result("x"))])[0]

    assert message["content"] is None


def test_results_become_tool_messages_before_the_rest() -> None:
    other = {**result("two"), "tool_use_id": "call2"}

    messages = render_messages(user(result([text("one"), text("more")]), text("and now?"), other))

    assert messages == [
        {"role": "tool", "tool_call_id": "call1", "content": "one\nmore"},
        {"role": "tool", "tool_call_id": "call2", "content": "two"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>no</tool_use_error>", "<tool_use_error>no</tool_use_error>"),
        ([], "Error: the tool failed."),
        (None, "Error: the tool failed."),
    ],
)
def test_a_failed_tool_is_told_to_the_model(content: Any, told: str) -> None:
    assert render_messages(user(result(content, is_error=True)))[0]["content"] == told
    assert render_messages(user(result("fine", is_error=False)))[0]["content"] == "fine"


def test_pictures_of_results_are_shown_by_the_user() -> None:
    tool, shown = render_messages(user(result([text("see"), IMAGE]), result([IMAGE]), text("well?")))[0::2]

    first, second = "[image 1 of the tool results]", "[image 2 of the tool results]"
    assert tool["content"] == f"see\n{first}"
    assert shown == {"role": "user", "content": [text(first), IMAGE_PART, text(second), IMAGE_PART, text("well?")]}


def test_documents_of_text_and_search_results_are_read_out() -> None:
    document = {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
    pages = {"type": "document", "source": {"type": "content", "content": [text("p1"), IMAGE, text("p2")]}}
    found = {"type": "search_result", "title": "T", "source": "https://e.org", "content": [text("b")]}

    (message,) = render_messages(user(document, pages, found))

    assert message["content"] == [
        text("<document>\nLog\na\n</document>"),
        text("<document>\np1"),
        IMAGE_PART,
        text("p2\n</document>"),
        text("<search_result>\nT\nhttps://e.org\nb\n</search_result>"),
    ]


def test_a_begun_answer_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "Sun?"}, {"role": "assistant", "content": "It is ("}]

    body = render(messages=messages)

    assert body["messages"][-1] == {"role": "assistant", "content": "It is ("}
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    assert "continue_final_message" not in render()


def test_fields_have_their_chat_names() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    asked = {"temperature": 0, "top_p": 0.5, "top_k": 4, "stop_sequences": ["x"], "stream": True, "min_p": 0.1}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}

    body = render(**asked, output_config=config, metadata={"user_id": "u"}, service_tier="auto", speed="fast")

    body.pop("messages")
    assert body.pop("response_format")["json_schema"]["schema"] == schema
    sampling = {"temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "reasoning_effort": "high"}
    assert body == {**sampling, "stop": ["x"], "stream": True, "max_tokens": 64}


def test_the_older_name_of_the_format_counts_too() -> None:
    body = render(output_format={"type": "json_schema", "schema": {"type": "object"}})

    assert body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("thinking", "is_on"), [({"type": "adaptive", "display": "omitted"}, True), ({"type": "disabled"}, False)]
)
def test_thinking_is_a_switch_of_the_template(thinking: Json, *, is_on: bool) -> None:
    assert render(thinking=thinking)["chat_template_kwargs"] == {"enable_thinking": is_on}
    assert "chat_template_kwargs" not in render()
    own = render(thinking=thinking, chat_template_kwargs={"enable_thinking": 7, "x": 1})
    assert own["chat_template_kwargs"] == {"enable_thinking": 7, "x": 1}


def test_what_cannot_be_done_is_named() -> None:
    fields = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]},
        "tools": [LOOK, {"type": "web_search_20250305", "name": "web_search"}],
    }

    request = read_messages_request(orjson.dumps(ask(**fields)))

    assert request.dropped == {
        "thinking.budget_tokens": 1024,
        "context_management": ["clear_tool_uses_20250919"],
        "tools.web_search_20250305": True,
    }
    assert [tool["function"]["name"] for tool in request.engine_body["tools"]] == ["look"]


def test_tools_have_their_chat_names() -> None:
    tool = {"type": "custom", "name": "look", "description": "Looks.", "input_schema": {"a": 1}, "strict": True, **MARK}

    (rendered,) = render(tools=[tool])["tools"]

    function = {"name": "look", "description": "Looks.", "parameters": {"a": 1}, "strict": True}
    assert rendered == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("bash_20250124", "bash"), ("text_editor_20250728", "str_replace_based_edit_tool"), ("memory_20250818", "memory")],
)
def test_tools_that_anthropics_models_know_by_heart_are_explained_to_others(kind: str, name: str) -> None:
    (rendered,) = render(tools=[{"type": kind, "name": name}])["tools"]

    assert rendered["function"]["name"] == name
    assert "command" in rendered["function"]["parameters"]["properties"]


def names_of(**fields: Any) -> list[str]:
    return [tool["function"]["name"] for tool in render(**fields).get("tools", [])]


def test_deferred_tools_are_shown_once_a_result_refers_to_them() -> None:
    hidden = {**LOOK, "name": "hidden", "defer_loading": True}
    placeholder = {**LOOK, "name": "never", "defer_loading": True}
    tools = [LOOK, hidden, placeholder]
    found = user(result([{"type": "tool_reference", "tool_name": "hidden"}]))

    assert names_of(tools=tools) == ["look"]
    assert names_of(tools=tools, messages=found) == ["look", "hidden"]
    assert "hidden" in render(tools=tools, messages=found)["messages"][0]["content"]


def test_deferred_tools_are_shown_when_nobody_here_can_search_for_them() -> None:
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}

    assert names_of(tools=[search, {**LOOK, "defer_loading": True}]) == ["look"]


def test_system_messages_bring_tools_and_take_them_away() -> None:
    def change(kind: str, tool: Json) -> Json:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    by_name = {"type": "tool_reference", "name": "look"}
    fresh = {"type": "tool_definition", "definition": {**LOOK, "name": "fresh"}}
    start = user(text("hi"))

    assert names_of(tools=[LOOK], messages=[*start, change("tool_removal", by_name)]) == []
    assert names_of(tools=[LOOK], messages=[*start, change("tool_addition", fresh)]) == ["look", "fresh"]
    back = [*start, change("tool_removal", by_name), change("tool_addition", by_name)]
    assert names_of(tools=[LOOK], messages=back) == ["look"]
    assert [message["role"] for message in render(tools=[LOOK], messages=back)["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "look"}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choices_have_their_chat_names(choice: Json, fields: Json) -> None:
    body = render(tools=[LOOK], tool_choice=choice)

    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == fields


def test_a_choice_without_tools_is_none() -> None:
    assert "tool_choice" not in render(tool_choice={"type": "auto", "disable_parallel_tool_use": True})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": user({"text": "x"})}, "messages.0.content.0.type"),
        ({"messages": user({"type": "text"})}, "messages.0.content.0.text"),
        ({"messages": user({"type": "container_upload", "file_id": "f"})}, "messages.0.content.0.type"),
        ({"messages": user({"type": "image", "source": {"type": "file"}})}, "messages.0.content.0.source.type"),
        ({"messages": user({"type": "image"})}, "messages.0.content.0.source"),
        ({"messages": user({"type": "document", "source": {"type": "base64"}})}, "messages.0.content.0.source.type"),
        ({"messages": user(result([{"type": "audio"}]))}, "messages.0.content.0.content.0.type"),
        ({"messages": user({"type": "tool_result"})}, "messages.0.content.0.tool_use_id"),
        ({"messages": user(text("x")), "system": [IMAGE]}, "system.0.type"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": [{**CALL, "input": "x"}]}]}, "messages.0.content.0.input"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"thinking": "on"}, "thinking"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"type": "web search\r\nx: y", "name": "x"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "fly"}}, "tool_choice.name"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "x"}}, "compaction"),
        ({"brand_new": 1}, "brand_new"),
    ],
)
def test_it_names_the_field_at_fault(fields: Json, param: str) -> None:
    error = refuse(**fields)

    assert error.param == param
    assert error.message.startswith(f"{param}: ")


def test_null_and_empty_are_the_same_as_absent() -> None:
    names = ["thinking", "tools", "tool_choice", "system", "stream", "output_config", "container", "seed", "brand_new"]

    assert render(**dict.fromkeys(names), mcp_servers=[]) == render()


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    raw = orjson.dumps(ask(messages=[{"role": "assistant", "content": [{**CALL, "input": "DEEP"}]}]))
    raw = raw.replace(b'"DEEP"', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}")

    with pytest.raises(ApiError) as caught:
        read_messages_request(raw)
    assert caught.value.param == "messages.0.content.0.input"
