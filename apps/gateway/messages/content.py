"""Renders Anthropic's messages to chat messages: their order and their words stay, cache marks go.

Knows the two shapes, no engine and no chat template. Reasoning goes along under the name that templates read: each
template decides how much of it its model sees again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from apps.gateway.dialect import Json
from apps.gateway.messages.fields import take_blocks, take_object, take_objects, take_text, wrong

# Claude Code's first system block is for a bill, not for the model; it differs from session to session, which would
# keep engines from sharing the work on the long system prompt behind it.
_BILLING_MARK = "x-anthropic-billing-header:"
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})  # read by `tools`
_ERROR_MARKS = ("error", "<tool_use_error>")


def render_messages(body: Json) -> list[Json]:
    """Return the chat messages of a request; raises ApiError (400) that names the field at fault."""
    rendered = _render_system(body["system"], "system") if body.get("system") is not None else []
    messages = take_objects(body.get("messages"), "messages")
    if not messages:
        raise wrong("messages", "at least one message is required")
    for index, message in enumerate(messages):
        role, path = message.get("role"), f"messages.{index}"
        if not isinstance(role, str) or role not in _ROLES:
            raise wrong(f"{path}.role", f"Input should be one of {', '.join(sorted(_ROLES))}")
        rendered += _ROLES[role](message.get("content"), f"{path}.content")
    return rendered


def _render_system(content: Any, path: str) -> list[Json]:
    blocks = [
        (index, block) for index, block in enumerate(take_blocks(content, path)) if block["type"] not in _TOOL_CHANGES
    ]
    texts = [_read_text(block, f"{path}.{index}") for index, block in blocks]
    shown = [text for text in texts if text and not text.startswith(_BILLING_MARK)]
    return [{"role": "system", "content": "\n\n".join(shown)}] if shown else []


def _render_assistant(content: Any, path: str) -> list[Json]:
    turn = _AssistantTurn()
    for index, block in enumerate(take_blocks(content, path)):
        turn.take(block, f"{path}.{index}")
    return [turn.render()]


@dataclass
class _AssistantTurn:
    """One assistant message. Texts are joined as they are: so they were when we cut them apart."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)

    def take(self, block: Json, path: str) -> None:
        kind = block["type"]
        if kind == "text":
            self.texts.append(_read_text(block, path))
        elif kind == "thinking":
            self.thoughts.append(take_text(block.get("thinking"), f"{path}.thinking"))
        elif kind == "tool_use":
            self.calls.append(_render_call(block, path))
        elif kind != "redacted_thinking":  # another server's secret: nobody here can read it
            raise _unsupported(kind, path)

    def render(self) -> Json:
        text = "".join(self.texts)
        message: Json = {"role": "assistant", "content": text if text or not self.calls else None}
        if any(self.thoughts):
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _render_call(block: Json, path: str) -> Json:
    try:
        arguments = orjson.dumps(take_object(block.get("input"), f"{path}.input")).decode()
    except orjson.JSONEncodeError as error:  # it reads deeper than it writes
        raise wrong(f"{path}.input", "nested too deeply") from error
    function = {"name": take_text(block.get("name"), f"{path}.name"), "arguments": arguments}
    return {"id": take_text(block.get("id"), f"{path}.id"), "type": "function", "function": function}


def _render_user(content: Any, path: str) -> list[Json]:
    """Return tool messages for the results, then a user message for the rest: templates know them in this order."""
    results: list[Json] = []
    images: list[Json] = []  # of results: chat templates take pictures from the user only
    rest: list[Json] = []
    for index, block in enumerate(take_blocks(content, path)):
        if block["type"] == "tool_result":
            results.append(_render_result(block, f"{path}.{index}", images))
        else:
            rest += _render_part(block, f"{path}.{index}")
    parts = [*images, *rest]
    return results if results and not parts else [*results, {"role": "user", "content": _fold(parts)}]


def _fold(parts: list[Json]) -> str | list[Json]:
    """Return one text as a string: clients send the same message now as a string and now as a block."""
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _render_result(block: Json, path: str, images: list[Json]) -> Json:
    """Return the tool message; its pictures are added to `images`, numbered in both places."""
    texts: list[str] = []
    blocks = take_blocks(block["content"], f"{path}.content") if block.get("content") is not None else []
    for index, inner in enumerate(blocks):
        for part in _render_part(inner, f"{path}.content.{index}"):
            if part["type"] == "image_url":
                label = f"[image {len(images) // 2 + 1} of the tool results]"
                images += [{"type": "text", "text": label}, part]
                texts.append(label)
            else:
                texts.append(part["text"])
    text = "\n".join(texts)
    if block.get("is_error") and not text.lower().startswith(_ERROR_MARKS):
        text = f"Error: {text}" if text else "Error: the tool failed."
    return {
        "role": "tool",
        "tool_call_id": take_text(block.get("tool_use_id"), f"{path}.tool_use_id"),
        "content": text,
    }


def _render_part(block: Json, path: str) -> list[Json]:
    """Return the chat parts of a user's or a tool result's block."""
    render = _PARTS.get(block["type"])
    if render is None:
        raise _unsupported(block["type"], path)
    return render(block, path)


def _render_text(block: Json, path: str) -> list[Json]:
    text = _read_text(block, path)
    return [{"type": "text", "text": text}] if text else []


def _render_image(block: Json, path: str) -> list[Json]:
    source = take_object(block.get("source"), f"{path}.source")
    kind = source.get("type")
    if kind == "url":
        url = take_text(source.get("url"), f"{path}.source.url")
    elif kind == "base64":
        media_type = take_text(source.get("media_type"), f"{path}.source.media_type")
        url = f"data:{media_type};base64,{take_text(source.get('data'), f'{path}.source.data')}"
    else:
        raise wrong(f"{path}.source.type", "only `base64` and `url` are supported here")
    return [{"type": "image_url", "image_url": {"url": url}}]


def _render_document(block: Json, path: str) -> list[Json]:
    source = take_object(block.get("source"), f"{path}.source")
    kind = source.get("type")
    if kind == "text":
        parts = [{"type": "text", "text": take_text(source.get("data"), f"{path}.source.data")}]
    elif kind == "content":
        blocks = take_blocks(source.get("content"), f"{path}.source.content")
        parts = [
            part for index, inner in enumerate(blocks) for part in _render_part(inner, f"{path}.source.content.{index}")
        ]
    else:
        advice = "this platform reads documents as text only: send the text as a `text` source"
        raise wrong(f"{path}.source.type", advice)
    head = "\n".join(str(block[name]) for name in ("title", "context") if block.get(name))
    return _frame(parts, "document", head)


def _render_search_result(block: Json, path: str) -> list[Json]:
    blocks = take_blocks(block.get("content"), f"{path}.content")
    parts = [part for index, inner in enumerate(blocks) for part in _render_part(inner, f"{path}.content.{index}")]
    head = "\n".join(str(block[name]) for name in ("title", "source") if block.get(name))
    return _frame(parts, "search_result", head)


def _render_reference(block: Json, path: str) -> list[Json]:
    name = take_text(block.get("tool_name"), f"{path}.tool_name")
    return [{"type": "text", "text": f"The tool {name} can be called now."}]


def _frame(parts: list[Json], tag: str, head: str) -> list[Json]:
    opening = {"type": "text", "text": f"<{tag}>\n{head}".rstrip()}
    return _join_texts([opening, *parts, {"type": "text", "text": f"</{tag}>"}])


def _join_texts(parts: list[Json]) -> list[Json]:
    """Return the parts with neighbouring texts as one, a line each."""
    joined: list[Json] = []
    for part in parts:
        if joined and part["type"] == joined[-1]["type"] == "text":
            joined[-1] = {"type": "text", "text": f"{joined[-1]['text']}\n{part['text']}"}
        else:
            joined.append(part)
    return joined


def _read_text(block: Json, path: str) -> str:
    if block["type"] != "text":
        raise _unsupported(block["type"], path)
    return take_text(block.get("text"), f"{path}.text")


def _unsupported(kind: str, path: str) -> Exception:
    return wrong(f"{path}.type", f"blocks of type `{kind}` are not supported here")


_ROLES: dict[str, Callable[[Any, str], list[Json]]] = {
    "system": _render_system,
    "user": _render_user,
    "assistant": _render_assistant,
}

_PARTS: dict[str, Callable[[Json, str], list[Json]]] = {
    "text": _render_text,
    "image": _render_image,
    "document": _render_document,
    "search_result": _render_search_result,
    "tool_reference": _render_reference,
}
