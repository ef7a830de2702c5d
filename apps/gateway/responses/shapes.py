"""What a Responses request may hold, and the chat request that it becomes.

Explicit tables: fields that are read here, fields that go to the engine as they are, fields that change nothing, and
fields that would change the meaning and are refused by name. There are no others. `truncation` is accepted, but nothing
is ever cut: the engine refuses a prompt that is too long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from apps.gateway.bodies import read_json
from apps.gateway.capture import Wishes
from apps.gateway.checks import COMMON, Check, check_fields, is_kind, is_texts, refuse_fields, wrong
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.errors import bad_request
from apps.gateway.known_fields import IGNORED, SAMPLING, TEMPLATE, refuse_unknown
from apps.gateway.known_fields import REFUSED as REFUSED_ANYWHERE
from apps.gateway.responses.history import History
from apps.gateway.responses.speech import Manner
from apps.gateway.responses.tools import ToolBook, read_tools

SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

# What chat completions have names for that mean nothing here, or are said in other words.
_CHATS_OWN = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "max_tokens",
        "reasoning_effort",
        "response_format",
        "return_prompt_text",
        "return_token_ids",
        "return_tokens_as_token_ids",
    }
)
PASSED = (SAMPLING | TEMPLATE | {"parallel_tool_calls"}) - _CHATS_OWN
READ = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "previous_response_id",
        "reasoning",
        "stream",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)
# Read by nobody here, beside what is so in every dialect.
UNREAD = IGNORED | {
    "access_programs",
    "background_options",
    "context_management",  # told: see `_find_unmet`
    "image",
    "max_tool_calls",
    "stream_options",
    "truncation",
}
# Field → what to do instead.
REFUSED = REFUSED_ANYWHERE | {
    "background": "wait for the answer, or stream it",
    "conversation": "use `previous_response_id`, or send the conversation as `input`",
    "prompt": "this platform keeps no prompt templates: send `instructions` and `input`",
}
KNOWN = PASSED | READ | UNREAD | REFUSED.keys() | {"prompt_logprobs"}
_ECHOED = ("max_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(ModelRequest):
    """`manner`: how the answer is to be told. `echo`: the settings that each response repeats."""

    manner: Manner
    echo: Json


def check_request(raw: bytes) -> Json:
    """Return the body; raises ApiError (400) that names the field at fault. Items and tools are not looked at yet."""
    body = read_json(raw)
    refuse_unknown(body, KNOWN)
    refuse_fields(body, REFUSED)
    check_fields(body, _CHECKS)
    if not body.get("input") and not body.get("previous_response_id"):
        raise wrong("input", "is required")
    return body


def make_request(body: Json, *, items: Any, earlier: list[Json], project_id: str) -> ResponsesRequest:
    """Return the request. `items`: the input, its references resolved; `earlier`: the messages that it goes on from."""
    tools = read_tools(body.get("tools") or [], body.get("tool_choice"))
    history = History(earlier, project_id=project_id)
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for place, item in enumerate(items):
        history.add(item, where=f"input[{place}]")
    messages = history.finish(body.get("instructions"))
    form = {"messages": messages} | ({"tools": tools.functions} if tools.functions else {})
    include, reasoning = body.get("include") or [], body.get("reasoning") or {}
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    return ResponsesRequest(
        body=body,
        engine_body=form | _settings(body, tools=tools, wants_logprobs=LOGPROBS in include),
        model=body["model"],
        is_streamed=bool(body.get("stream")),
        wishes=Wishes(logprobs=LOGPROBS in include),
        chat_form=form,
        dropped=tools.dropped | history.dropped | _find_unmet(body),
        manner=Manner(tools=tools, is_summary=summary is not None, sealed_for=project_id if SEALED in include else ""),
        echo=_make_echo(body, tools),
    )


def _settings(body: Json, *, tools: ToolBook, wants_logprobs: bool) -> Json:
    """Return everything but messages and tools as chat completions have it."""
    settings = {name: body[name] for name in PASSED if body.get(name) is not None}
    if not tools.functions:
        settings.pop("parallel_tool_calls", None)
    found = {
        "stream": body.get("stream"),
        "tool_choice": tools.choice,
        "max_completion_tokens": body.get("max_output_tokens"),
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
        "response_format": _read_format((body.get("text") or {}).get("format")),
        "logprobs": wants_logprobs or None,
        "top_logprobs": body.get("top_logprobs") if wants_logprobs else None,
    }
    return settings | {name: value for name, value in found.items() if value is not None}


def _read_format(form: Any) -> Json | None:
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema":
        raise wrong("text.format.type", "must be text, json_object or json_schema")
    if not isinstance(form.get("schema"), dict):
        raise wrong("text.format.schema", "must be a JSON schema")
    names = ("description", "schema", "strict")
    schema = {"name": form.get("name") or "answer"} | {name: form[name] for name in names if form.get(name) is not None}
    return {"type": kind, "json_schema": schema}


def _find_unmet(body: Json) -> Json:
    """Return what was understood but cannot be done, so that the client is told and the pool knows."""
    return {"context_management": "nothing is cut or summarised"} if body.get("context_management") else {}


def _make_echo(body: Json, tools: ToolBook) -> Json:
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    choice = body.get("tool_choice")
    return {
        "model": body["model"],
        "instructions": body.get("instructions"),
        "previous_response_id": body.get("previous_response_id"),
        "max_output_tokens": body.get("max_output_tokens"),
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "top_logprobs": body.get("top_logprobs") or 0,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "store": body.get("store") is not False,
        "background": False,
        "truncation": "disabled",
        "metadata": body.get("metadata") or {},
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": _freeze("text", {**text, "format": text.get("format") or {"type": "text"}}),
        "tool_choice": _freeze("tool_choice", "auto" if choice is None else choice),
        "tools": _freeze("tools", tools.shown),
        **{name: body[name] for name in _ECHOED if body.get(name) is not None},
    }


def _freeze(name: str, value: Any) -> orjson.Fragment:
    """Write the value once: a stream repeats it three times."""
    try:
        return orjson.Fragment(orjson.dumps(value))
    except orjson.JSONEncodeError as error:  # it reads deeper than it writes
        raise bad_request(f"`{name}` is nested too deeply.", param=name, code="invalid_json") from error


def _is_between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in {int, float} and low <= value <= high


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _has_texts(*names: str) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict) and all(value.get(name) is None or isinstance(value[name], str) for name in names)
    )


_CHECKS: tuple[Check, ...] = (
    *COMMON,
    ("input", is_kind(str, list), "a string or a list of items"),
    ("instructions", is_kind(str), "a string"),
    ("previous_response_id", is_kind(str), "a string"),
    ("background", is_kind(bool), "true or false"),
    ("store", is_kind(bool), "true or false"),
    ("parallel_tool_calls", is_kind(bool), "true or false"),
    ("tools", is_kind(list), "a list"),
    ("include", is_texts, "a list of strings"),
    ("metadata", _is_text_map, "an object of strings"),
    ("reasoning", _has_texts("effort", "summary", "generate_summary"), "an object of strings"),
    ("text", _has_texts("verbosity"), "an object"),
    ("truncation", lambda value: value in ("auto", "disabled"), "`auto` or `disabled`"),
    ("max_output_tokens", lambda value: type(value) is int and value >= 1, "an integer of at least 1"),
    ("max_tool_calls", is_kind(int), "an integer"),
    ("top_logprobs", lambda value: type(value) is int and 0 <= value <= 20, "an integer from 0 to 20"),
    ("temperature", _is_between(0, 2), "a number from 0 to 2"),
    ("top_p", _is_between(0, 1), "a number from 0 to 1"),
    ("prompt_cache_key", is_kind(str), "a string"),
    ("safety_identifier", is_kind(str), "a string"),
    ("service_tier", is_kind(str), "a string"),
    ("user", is_kind(str), "a string"),
)
