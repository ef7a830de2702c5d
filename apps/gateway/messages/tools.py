"""Renders Anthropic's tools and tool choice to chat's.

Tools that Anthropic's own servers run are left out and named: nobody here would run them.
"""

import re
from collections.abc import Iterator

from apps.gateway.dialect import Json
from apps.gateway.messages.builtin_tools import find_definition
from apps.gateway.messages.fields import take_object, take_objects, take_text, wrong

_CUSTOM = "custom"
_KIND = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_SEARCH = "tool_search_tool_"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def render_tools(body: Json) -> tuple[list[Json], list[str]]:
    """Return the chat tools that the model is to see, and the types of those left out.

    A tool with `defer_loading` is seen once a message refers to it; all are when it was Anthropic's own search that
    would have found them. The body's messages have been looked over.
    """
    offered: dict[str, Json] = {}
    hidden: set[str] = set()
    dropped: list[str] = []
    for index, tool in enumerate(take_objects(body.get("tools") or [], "tools")):
        rendered = _render_tool(tool, f"tools.{index}")
        if rendered is None:
            dropped.append(tool["type"])
            continue
        offered[rendered["function"]["name"]] = rendered
        if tool.get("defer_loading"):
            hidden.add(rendered["function"]["name"])
    if any(kind.startswith(_SEARCH) for kind in dropped):
        hidden = set()
    for name, is_shown in _changes(body["messages"], offered):
        (hidden.discard if is_shown else hidden.add)(name)
    return [tool for name, tool in offered.items() if name not in hidden], dropped


def render_choice(body: Json, tools: list[Json]) -> Json:
    """Return the chat fields for `tool_choice`; raises ApiError (400) when it asks for a tool that is not there."""
    if body.get("tool_choice") is None:
        return {}
    choice = take_object(body["tool_choice"], "tool_choice")
    kind = choice.get("type")
    fields: Json = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") and tools else {}
    if kind == "tool":
        name = take_text(choice.get("name"), "tool_choice.name")
        if name not in {tool["function"]["name"] for tool in tools}:
            raise wrong("tool_choice.name", f"Tool '{name}' not found in provided tools")
        return fields | {"tool_choice": {"type": "function", "function": {"name": name}}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise wrong("tool_choice.type", f"Input should be one of {', '.join([*_CHOICES, 'tool'])}")
    if tools:
        return fields | {"tool_choice": _CHOICES[kind]}
    if kind == "any":
        raise wrong("tool_choice.type", "`any` needs at least one tool that this platform can offer to the model")
    return {}


def _render_tool(tool: Json, path: str) -> Json | None:
    """Return the chat tool, None for one that this platform cannot offer."""
    kind = _CUSTOM if tool.get("type") is None else take_text(tool["type"], f"{path}.type")
    if not _KIND.fullmatch(kind):
        raise wrong(f"{path}.type", "Input should be the name of a kind of tool")
    known = find_definition(kind)
    if kind != _CUSTOM and known is None:
        return None
    function: Json = {"name": take_text(tool.get("name"), f"{path}.name")}
    if known is not None:
        return {"type": "function", "function": function | known}
    if tool.get("description") is not None:
        function["description"] = take_text(tool["description"], f"{path}.description")
    function["parameters"] = take_object(tool.get("input_schema"), f"{path}.input_schema")
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _changes(messages: list[Json], offered: dict[str, Json]) -> Iterator[tuple[str, bool]]:
    """Yield, in the order of the conversation, which tool comes into sight or goes out of it.

    A tool that a message defines is added to `offered`.
    """
    for index, message in enumerate(messages):
        content = message["content"]
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if block["type"] == "tool_result" and isinstance(block.get("content"), list):
                for part in block["content"]:
                    if part["type"] == "tool_reference":
                        yield part["tool_name"], True
            elif block["type"] in {"tool_addition", "tool_removal"}:
                name = _read_change(block, f"messages.{index}.content.{place}.tool", offered)
                yield name, block["type"] == "tool_addition"


def _read_change(block: Json, path: str, offered: dict[str, Json]) -> str:
    tool = take_object(block.get("tool"), path)
    if tool.get("type") != "tool_definition":
        return take_text(tool.get("name"), f"{path}.name")
    definition = take_object(tool.get("definition"), f"{path}.definition")
    name = take_text(definition.get("name"), f"{path}.definition.name")
    rendered = _render_tool(definition, f"{path}.definition")
    if rendered is not None:
        offered[name] = rendered
    return name
