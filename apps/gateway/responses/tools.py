"""The client's tools as the functions that engines know, and their names back again.

A freeform (custom) tool becomes a function with one text, a namespace becomes functions whose names begin with its own.
Hosted tools run on OpenAI's servers; here they are left out, and the client is told. Knows neither input nor answers.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from apps.gateway.checks import wrong
from apps.gateway.dialect import Json

CUSTOM_INPUT = "input"  # the one parameter of a function that stands for a freeform tool
_CHOICES = ("auto", "none", "required")
_CALLABLE = ("function", "custom")  # tuples: what a client sends need not be hashable
_NOT_PLAIN = re.compile(r"[^0-9A-Za-z_.-]")


@dataclass(frozen=True, slots=True)
class ToolName:
    """What the client calls a tool."""

    name: str
    namespace: str = ""
    is_custom: bool = False

    @property
    def flat(self) -> str:
        return flatten_name(self.name, self.namespace)


@dataclass(slots=True, kw_only=True)
class ToolBook:
    """The tools of one request. `functions` and `choice`: for the engine. `shown`: what the client is told it has."""

    functions: list[Json] = field(default_factory=list)
    choice: Any = None
    names: dict[str, ToolName] = field(default_factory=dict)  # by the function's name
    shown: list[Json] = field(default_factory=list)
    dropped: Json = field(default_factory=dict)

    def name_of(self, function: str) -> ToolName:
        """Return what the client calls the function; one that the model made up keeps its name."""
        return self.names.get(function) or ToolName(function)


def flatten_name(name: str, namespace: str = "") -> str:
    """Return the function's name. The same in every request: a history is read without the tools that it came from."""
    return f"{namespace}__{name}" if namespace else name


def plain(text: str) -> str:
    """Return the text as a header may hold it."""
    return _NOT_PLAIN.sub("", text)[:60]


def read_tools(tools: list[Any], choice: Any) -> ToolBook:
    """Return the tools that the model is to see; raises ApiError (400) that names the field at fault."""
    book = ToolBook()
    for place, tool in enumerate(tools):
        _add_tool(book, tool, where=f"tools[{place}]")
    book.choice = _read_choice(book, choice)
    return book


def _add_tool(book: ToolBook, tool: Any, *, where: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise wrong(f"{where}.type", "must say what kind of tool this is")
    if kind == "namespace":
        _add_namespace(book, tool, where=where)
    elif kind in _CALLABLE:
        _add_function(book, tool, namespace="", where=where)
    else:
        book.dropped[f"{where}:{plain(kind)}"] = "not run by this platform"
        return
    book.shown.append(tool)


def _add_namespace(book: ToolBook, tool: Json, *, where: str) -> None:
    namespace, inner = tool.get("name"), tool.get("tools")
    if not isinstance(namespace, str) or not namespace:
        raise wrong(f"{where}.name", "is required")
    if not isinstance(inner, list):
        raise wrong(f"{where}.tools", "must be a list")
    for place, function in enumerate(inner):
        at = f"{where}.tools[{place}]"
        if not isinstance(function, dict) or function.get("type", "function") not in _CALLABLE:
            raise wrong(f"{at}.type", "must be `function` or `custom`")
        _add_function(book, function, namespace=namespace, where=at)


def _add_function(book: ToolBook, tool: Json, *, namespace: str, where: str) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", "is required")
    named = ToolName(name, namespace, is_custom=tool.get("type") == "custom")
    if named.flat in book.names:
        raise wrong(f"{where}.name", f"is taken: two tools would be called `{named.flat}`")
    book.names[named.flat] = named
    function = _render_custom(book, tool, where=where) if named.is_custom else _render_function(tool, where=where)
    book.functions.append({"type": "function", "function": {"name": named.flat, **function}})


def _render_function(tool: Json, *, where: str) -> Json:
    if not isinstance(tool.get("parameters"), dict | None):
        raise wrong(f"{where}.parameters", "must be a JSON schema")
    return {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}


def _render_custom(book: ToolBook, tool: Json, *, where: str) -> Json:
    """A grammar cannot be enforced through a function's arguments: the model is shown it, the client told."""
    description = str(tool.get("description") or "")
    shape = tool.get("format")
    if isinstance(shape, dict) and shape.get("type") == "grammar":
        syntax, definition = shape.get("syntax"), shape.get("definition")
        description += f"\n\nThe input must match this {syntax} grammar:\n{definition}"
        book.dropped[f"{where}.format"] = "shown to the model, not enforced"
    text = {"type": "string", "description": "The tool's whole input, as plain text."}
    schema = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    return {"description": description.strip(), "parameters": {**schema, "additionalProperties": False}}


def _read_choice(book: ToolBook, choice: Any) -> Any:
    """Return the engine's `tool_choice`, None where there is nothing to choose."""
    if choice in (None, "auto", "none"):
        return choice if book.functions else None
    if choice == "required":
        if not book.functions:
            raise wrong("tool_choice", "is `required`, but the request has no tool that this platform runs")
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "allowed_tools":
        return _allow_some(book, choice)
    if kind not in _CALLABLE:
        raise wrong(
            "tool_choice", f"must be one of {', '.join(_CHOICES)}, or name a function or a custom tool of `tools`"
        )
    return {"type": "function", "function": {"name": _find_named(book, choice, where="tool_choice")}}


def _allow_some(book: ToolBook, choice: Json) -> Any:
    """The model sees only the tools that it may call."""
    mode, tools = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise wrong("tool_choice.mode", "must be `auto` or `required`")
    if not isinstance(tools, list) or not tools:
        raise wrong("tool_choice.tools", "must be a list of at least one tool")
    places = [f"tool_choice.tools[{place}]" for place in range(len(tools))]
    allowed = {_find_named(book, tool, where=where) for tool, where in zip(tools, places, strict=True)}
    book.functions = [tool for tool in book.functions if tool["function"]["name"] in allowed]
    return mode


def _find_named(book: ToolBook, tool: Any, *, where: str) -> str:
    name, namespace = (tool.get("name"), tool.get("namespace")) if isinstance(tool, dict) else (None, None)
    found = [
        flat
        for flat, named in book.names.items()
        if name in (named.name, flat) and namespace in (None, named.namespace)
    ]
    if len(found) != 1:
        raise wrong(f"{where}.name", "must name one tool of `tools` that this platform runs")
    return found[0]
