"""Conversations of other makers as trajectories: OpenAI's chat lines and ShareGPT's.

Each answer of the assistant becomes a step that saw the messages before it. They have no tokens. Pure.
"""

import json
from collections.abc import Sequence
from types import NoneType
from typing import Any

from apps.trajectories.datasets.incoming import BadLine, Incoming, IncomingStep
from apps.trajectories.datasets.line_shapes import OpenAILine, ShareGptLine, read_line
from apps.trajectories.datasets.strict_json import TOO_DEEP, NotJson, is_too_deep, read_json

Line = tuple[int, dict[str, Any]]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ARGUMENTS = "they are an object, or a text that spells one"
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "call",
    "tool_call": "call",
}


def read_openai(lines: Sequence[Line]) -> Incoming:
    """Read one conversation. An assistant message of weight 0 is context only: its step is kept out of training."""
    ((line, data),) = lines
    row = read_line(OpenAILine, line, data)
    metadata = {**(row.model_extra or {}), **(row.metadata or {})}
    tools = row.tools or []
    _check_tools(line, tools)
    steps = read_answers(line, row.messages, tools=tools)
    return Incoming(
        line=line,
        channel=row.channel,
        group=row.group,
        metadata=metadata,
        reward=row.reward,
        reward_field="reward",
        steps=steps,
    )


def read_answers(line: int, messages: list[dict[str, Any]], *, tools: list[Any]) -> list[IncomingStep]:
    """Return a step for each answer. Raises BadLine for what is no conversation, or one that nobody answers."""
    steps: list[IncomingStep] = []
    plain = [{key: value for key, value in said.items() if key != "weight"} for said in messages]
    for place, message in enumerate(messages):
        _check_message(line, place, message)
        if message["role"] != "assistant":
            continue
        if place == 0:
            raise BadLine(line, "messages.0: an answer cannot come first: nothing was asked")
        steps.append(
            IncomingStep(
                line=line,
                index=len(steps),
                messages=plain[:place],
                answer=plain[place],
                tools=tools,
                follows=len(steps) - 1 if steps else None,
                is_excluded=message.get("weight") == 0,
            )
        )
    if messages[-1]["role"] != "assistant":
        raise BadLine(line, "messages: the last one is not the assistant's: nothing answers it")
    return steps


def _check_message(line: int, place: int, message: dict[str, Any]) -> None:
    where = f"messages.{place}"
    if message.get("role") not in ROLES:
        raise BadLine(line, f"{where}.role: it is one of {', '.join(ROLES)}; this is {message.get('role')!r}")
    if message.get("weight") not in (None, 0, 1):
        raise BadLine(line, f"{where}.weight: it is 0 or 1; this is {message['weight']!r}")
    for name in ("name", "tool_call_id"):
        if not isinstance(message.get(name, ""), (str, NoneType)):
            raise BadLine(line, f"{where}.{name}: it is a text")
    _check_content(line, f"{where}.content", message.get("content"))
    has_calls = _check_calls(line, where, message)
    if not message.get("content") and not has_calls and message["role"] in {"user", "assistant"}:
        raise BadLine(line, f"{where}: it says nothing")


def _check_content(line: int, where: str, content: Any) -> None:
    if not isinstance(content, (str, list, NoneType)):
        raise BadLine(line, f"{where}: it is a text, a list of parts or null")
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict):
            raise BadLine(line, f"{where}.{place}: a part is an object")
        if not isinstance(part.get("text", ""), str):
            raise BadLine(line, f"{where}.{place}.text: it is a text")


def _check_calls(line: int, where: str, message: dict[str, Any]) -> bool:
    """Say whether it calls anything."""
    calls, old_call = message.get("tool_calls") or [], message.get("function_call")
    if not isinstance(calls, list):
        raise BadLine(line, f"{where}.tool_calls: it is a list of calls")
    for place, call in enumerate(calls):
        _check_function(line, f"{where}.tool_calls.{place}", call)
        if not isinstance(call.get("id", ""), (str, NoneType)):
            raise BadLine(line, f"{where}.tool_calls.{place}.id: it is a text")
        _check_arguments(line, f"{where}.tool_calls.{place}.function", call["function"])
    if old_call is not None:
        if not _has_name(old_call):
            raise BadLine(line, f"{where}.function_call: it is an object with a `name`")
        _check_arguments(line, f"{where}.function_call", old_call)
    return message["role"] == "assistant" and bool(calls or old_call)


def _check_arguments(line: int, where: str, function: dict[str, Any]) -> None:
    if not isinstance(function.get("arguments", ""), (str, dict)):
        raise BadLine(line, f"{where}.arguments: {_ARGUMENTS}")


def _check_tools(line: int, tools: list[dict[str, Any]]) -> None:
    for place, tool in enumerate(tools):
        _check_function(line, f"tools.{place}", tool)


def _check_function(line: int, where: str, value: Any) -> None:
    """Raise BadLine for what is no tool, or no call of one: both say their function in the same way."""
    if not isinstance(value, dict):
        raise BadLine(line, f"{where}: it is an object")
    if (value.get("type") or "function") != "function":
        raise BadLine(line, f"{where}.type: it is function; this is {value['type']!r}")
    if not _has_name(value.get("function")):
        raise BadLine(line, f"{where}.function: it is an object with a `name`")


def _has_name(function: Any) -> bool:
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def read_sharegpt(lines: Sequence[Line]) -> Incoming:
    """Read one conversation; calls of functions, written as JSON in a text, become tool calls."""
    ((line, data),) = lines
    row = read_line(ShareGptLine, line, data)
    messages = _translate(line, row.conversations)
    if row.system:
        messages.insert(0, {"role": "system", "content": row.system})
    steps = read_answers(line, messages, tools=_read_tools(line, row.tools))
    return Incoming(line=line, metadata=dict(row.model_extra or {}), steps=steps)


def _translate(line: int, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    call_id = ""
    for place, turn in enumerate(turns):
        role, text = SHAREGPT_ROLES.get(str(turn.get("from", ""))), turn.get("value")
        if role is None:
            known = ", ".join(SHAREGPT_ROLES)
            raise BadLine(line, f"conversations.{place}.from: it is one of {known}; this is {turn.get('from')!r}")
        if not isinstance(text, str):
            raise BadLine(line, f"conversations.{place}.value: it is a text")
        if role == "call":
            call_id = f"call{place}"
            messages.append(_read_call(line, place, text, call_id=call_id))
        elif role == "tool":
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            messages.append({"role": role, "content": text})
    return messages


def _read_call(line: int, place: int, text: str, *, call_id: str) -> dict[str, Any]:
    try:
        call = read_json(text)
        name, arguments = call["name"], call.get("arguments", {})
    except (ValueError, TypeError, KeyError) as error:
        raise BadLine(line, f"conversations.{place}.value: a call is JSON with a name and arguments") from error
    if not isinstance(name, str):
        raise BadLine(line, f"conversations.{place}.value: the name of a call is a text")
    _check_arguments(line, f"conversations.{place}.value", call)
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": spelled}
    tool_call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def _read_tools(line: int, tools: str | list[Any] | None) -> list[Any]:
    if not tools:
        return []
    if isinstance(tools, str):
        try:
            tools = read_json(tools)
        except NotJson as error:
            raise BadLine(line, f"tools: {error}") from error
    if not isinstance(tools, list):
        raise BadLine(line, "tools: it is a list of functions")
    if is_too_deep(tools):
        raise BadLine(line, f"tools: {TOO_DEEP}")
    tools = [
        {"type": "function", "function": tool} if isinstance(tool, dict) and "function" not in tool else tool
        for tool in tools
    ]
    _check_tools(line, tools)
    return tools
