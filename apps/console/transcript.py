"""Chat messages as a page shows them: long texts folded, tool calls with readable arguments.

Takes whatever a client or a model sent and never fails on it. Knows nothing of HTML: templates escape every word.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FOLD_OVER = 2400
HEAD = 1400
TAIL = 500
PREVIEW = 90


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text in up to three pieces that join to the whole; `middle` is folded away when it is not empty."""

    head: str
    middle: str = ""
    tail: str = ""

    @property
    def n_characters(self) -> int:
        return len(self.head) + len(self.middle) + len(self.tail)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool. `arguments` is indented JSON, or what came when it is not JSON."""

    name: str
    call_id: str
    arguments: Text
    preview: str
    is_json: bool


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `others` names parts that are not text (images, files)."""

    role: str
    texts: tuple[Text, ...] = ()
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    others: tuple[str, ...] = ()
    preview: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self.reasoning or self.tool_calls or self.others)

    @property
    def is_folded(self) -> bool:
        """System texts and tool results stand folded: one line says what they are."""
        return self.role in {"system", "developer"}


def fold(text: str) -> Text:
    """Cut a long text into its beginning, its folded middle and its end."""
    if len(text) <= FOLD_OVER:
        return Text(head=text)
    return Text(head=text[:HEAD], middle=text[HEAD:-TAIL], tail=text[-TAIL:])


def preview(text: str) -> str:
    """Return the first words of a text on one line."""
    line = " ".join(text[: 4 * PREVIEW].split())
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def read_messages(raw: object) -> list[Message]:
    """Return the messages of a decoded JSON list; anything else becomes one message that shows it."""
    if not isinstance(raw, list):
        return [read_message(raw)] if raw else []
    return [read_message(item) for item in raw]


def read_message(raw: object) -> Message:
    """Return one message, however it looks."""
    if not isinstance(raw, dict):
        return Message(role="unknown", texts=(fold(_as_json(raw)),))
    texts, others = _read_content(raw.get("content"))
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    calls = tuple(_read_tool_call(call) for call in _items(raw.get("tool_calls")))
    return Message(
        role=str(raw.get("role") or "unknown"),
        texts=tuple(fold(text) for text in texts),
        reasoning=fold(reasoning) if isinstance(reasoning, str) and reasoning else None,
        tool_calls=calls,
        tool_call_id=str(raw.get("tool_call_id") or ""),
        others=tuple(others),
        preview=preview(" ".join(texts)) or (f"{calls[0].name}({calls[0].preview})" if calls else ""),
    )


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else []


def _read_content(content: object) -> tuple[list[str], list[str]]:
    if content is None or content == "":
        return [], []
    if isinstance(content, str):
        return [content], []
    if not isinstance(content, list):
        return [_as_json(content)], []
    texts: list[str] = []
    others: list[str] = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, str):
            texts.append(part)
        else:
            others.append(str(part.get("type") or "part") if isinstance(part, dict) else "part")
    return texts, others


def _read_tool_call(call: object) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    named: dict[str, Any] = function if isinstance(function, dict) else {}
    raw = named.get("arguments", "")
    text = raw if isinstance(raw, str) else _as_json(raw)
    pretty, is_json = _pretty(text)
    return ToolCall(
        name=str(named.get("name") or "unnamed"),
        call_id=str(call.get("id") or "") if isinstance(call, dict) else "",
        arguments=fold(pretty),
        preview=preview(text),
        is_json=is_json,
    )


def _pretty(text: str) -> tuple[str, bool]:
    try:
        return _as_json(json.loads(text)), True
    except (ValueError, RecursionError):
        return text, False


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def decode_json(data: bytes | memoryview | None) -> Any:
    """Return the JSON value in `data`, or its text when it is none."""
    text = bytes(data or b"").decode("utf-8", errors="replace")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def pretty_json(value: Any) -> str:
    """Return `value` as indented JSON for the raw view."""
    return value if isinstance(value, str) else _as_json(value)
