"""What an engine is asked for a chat request: the client's own words, spelled as strictly as engines read them.

vLLM checks messages against the letter of OpenAI's types, and refuses what OpenAI's servers and agents take for the
same: a null content, a call without its type, an empty list of tools. The model sees the same either way.
"""

import contextlib
from typing import Any

import orjson

from apps.gateway.dialect import Json
from apps.gateway.known_fields import keep_meaningful

_ABOUT_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


def make_engine_body(body: Json) -> Json:
    """Return the fields for the engine; `body` stays as it is."""
    engine_body = keep_meaningful(body)
    engine_body["messages"] = [_mend_message(message) for message in body["messages"]]
    if not engine_body.get("tools"):
        for name in _ABOUT_TOOLS:
            engine_body.pop(name, None)
    return engine_body


def _mend_message(message: Json) -> Json:
    if message["role"] != "assistant":
        return {**message, "content": ""} if message.get("content", "") is None else message
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_mend_call(call) for call in calls]} if calls else message


def _mend_call(call: Json) -> Json:
    function = call["function"]
    return {**call, "type": "function", "function": {**function, "arguments": _mend_arguments(function)}}


def _mend_arguments(function: Json) -> Any:
    arguments = function.get("arguments")
    if arguments is None:
        return "{}"
    if not isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONEncodeError):  # nested too deeply: told when the body is written
            return orjson.dumps(arguments).decode()
    return arguments
