"""Chat messages as a page shows them: long texts folded, tool calls with readable arguments.

Takes whatever a client or a model sent and never fails on it. Knows nothing of HTML: templates escape every word.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

FOLD_OVER = 2400
LOAD_OVER = 30_000  # longer ones come with their page only when somebody asks for the whole
HEAD = 1400
TAIL = 500
PREVIEW = 90
PICTURE = "picture"
IMAGES = ("png", "jpeg", "gif", "webp")  # browsers draw these and run nothing in them
_DATA_URL = re.compile(rf"data:(image/(?:{'|'.join(IMAGES)}));base64,")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text in up to three pieces that join to the whole; `middle` is folded away when it is not empty, and has been
    left out when `n_left_out` says how long it is."""

    head: str
    middle: str = ""
    tail: str = ""
    n_left_out: int = 0

    @property
    def is_short(self) -> bool:
        return not (self.middle or self.n_left_out)

    @property
    def n_characters(self) -> int:
        return len(self.head) + len(self.middle) + self.n_left_out + len(self.tail)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool. `arguments` is indented JSON, or what came when it is not JSON."""

    name: str
    call_id: str
    arguments: Text
    preview: str
    is_json: bool


@dataclass(frozen=True, kw_only=True)
class Image:
    """A picture that stands in the message itself. `place` counts those of a step; `media_type` is of `IMAGES`."""

    place: int
    media_type: str
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `others` names parts that are neither text nor pictures that can be shown."""

    role: str
    texts: tuple[Text, ...] = ()
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    images: tuple[Image, ...] = ()
    others: tuple[str, ...] = ()
    preview: str = ""

    @property
    def n_left_out(self) -> int:
        """Characters that must be asked for."""
        pieces = [*self.texts, *(call.arguments for call in self.tool_calls)]
        return sum(text.n_left_out for text in pieces) + (self.reasoning.n_left_out if self.reasoning else 0)

    @property
    def is_empty(self) -> bool:
        return not (self.texts or self.reasoning or self.tool_calls or self.images or self.others)

    @property
    def is_prose(self) -> bool:
        """People and models write Markdown; what a tool answers is shown as it came."""
        return self.role in {"user", "assistant"}

    @property
    def is_folded(self) -> bool:
        """System texts and tool results stand folded: one line says what they are."""
        return self.role in {"system", "developer"}


def fold(text: str, *, is_whole: bool = False) -> Text:
    """Cut a long text into its beginning, its folded middle and its end; a very long one comes without its middle."""
    if len(text) <= FOLD_OVER:
        return Text(head=text)
    if len(text) > LOAD_OVER and not is_whole:
        return Text(head=text[:HEAD], tail=text[-TAIL:], n_left_out=len(text) - HEAD - TAIL)
    return Text(head=text[:HEAD], middle=text[HEAD:-TAIL], tail=text[-TAIL:])


def preview(text: str) -> str:
    """Return the first words of a text on one line."""
    line = " ".join(text[: 4 * PREVIEW].split())
    return line if len(line) <= PREVIEW else f"{line[: PREVIEW - 1]}…"


def read_messages(raw: object, *, is_whole: bool = False, places: Iterator[int] | None = None) -> list[Message]:
    """Return the messages of a decoded JSON list; anything else becomes one message that shows it."""
    if not isinstance(raw, list):
        return [read_message(raw, is_whole=is_whole, places=places)] if raw else []
    return [read_message(item, is_whole=is_whole, places=places) for item in raw]


def read_message(raw: object, *, is_whole: bool = False, places: Iterator[int] | None = None) -> Message:
    """Return one message, however it looks; `is_whole`: very long texts too; `places` number its pictures, and without
    them none is shown."""
    if not isinstance(raw, dict):
        return Message(role="unknown", texts=(fold(_as_json(raw), is_whole=is_whole),))
    texts, others = _read_content(raw.get("content"))
    images = tuple(
        Image(place=place, media_type=media_type, n_bytes=len(data) * 3 // 4)
        for place, (media_type, data) in zip(places or (), iterate_images([raw]), strict=False)
    )
    if images:
        others = [other for other in others if not other.startswith(PICTURE)]
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    calls = tuple(_read_tool_call(call, is_whole=is_whole) for call in _items(raw.get("tool_calls")))
    return Message(
        role=str(raw.get("role") or "unknown"),
        texts=tuple(fold(text, is_whole=is_whole) for text in texts),
        reasoning=fold(reasoning, is_whole=is_whole) if isinstance(reasoning, str) and reasoning else None,
        tool_calls=calls,
        tool_call_id=str(raw.get("tool_call_id") or ""),
        images=images,
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
            others.append(_name_part(part))
    return texts, others


def _name_part(part: object) -> str:
    if not isinstance(part, dict):
        return "part"
    if _picture_in(part) is not None:
        return PICTURE
    address = _address_of(part)
    kind = str(part.get("type") or "part")
    return f"{kind} at {preview(address)}" if address and not address.startswith("data:") else kind


def iterate_images(messages: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield the media type and the base64 text of each picture that stands in the messages, in order."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if (found := _picture_in(part)) is not None:
                yield found


def _picture_in(part: object) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a picture that the part holds itself, and not by an address."""
    found = _DATA_URL.match(_address_of(part))
    return (found[1], found.string[found.end() :]) if found else None


def _address_of(part: object) -> str:
    named = part.get("image_url") if isinstance(part, dict) else None
    address = named.get("url") if isinstance(named, dict) else named
    return address if isinstance(address, str) else ""


def _read_tool_call(call: object, *, is_whole: bool) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    named: dict[str, Any] = function if isinstance(function, dict) else {}
    raw = named.get("arguments", "")
    text = raw if isinstance(raw, str) else _as_json(raw)
    pretty, is_json = _pretty(text)
    return ToolCall(
        name=str(named.get("name") or "unnamed"),
        call_id=str(call.get("id") or "") if isinstance(call, dict) else "",
        arguments=fold(pretty, is_whole=is_whole),
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
