"""Input items as the chat messages that the model is to see.

What one answer said comes back as several items (reasoning, text, calls); here they are one assistant message again, as
models know it. Knows no tools beyond their names, and asks nobody: references were resolved before.
"""

from collections.abc import Callable
from typing import Any

import orjson

from apps.gateway.checks import wrong
from apps.gateway.dialect import Json
from apps.gateway.responses.naming import answer_of_item
from apps.gateway.responses.sealing import unseal_reasoning
from apps.gateway.responses.tools import CUSTOM_INPUT, flatten_name

SYSTEM_GAP = "\n\n"
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_DETAILS = ("auto", "low", "high")
# What other people's servers did: the answers that follow say what came of it.
_DROPPED_ITEMS = ("web_search_call", "mcp_list_tools")


class History:
    """Reads items in order. `messages`: what was read; `dropped`: what could not be shown to the model."""

    def __init__(self, earlier: list[Json], *, project_id: str) -> None:
        self.project_id = project_id
        self.messages = list(earlier)
        self.dropped: Json = {}
        self._turn: _Turn | None = None

    def add(self, item: Any, *, where: str) -> None:
        """Read one item; raises ApiError (400) that names it."""
        if not isinstance(item, dict):
            raise wrong(where, "must be an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind in _DROPPED_ITEMS:
            self.dropped[f"{where}:{kind}"] = "not for the model"
            return
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise wrong(f"{where}.type", f"is not supported; use one of {', '.join(_READERS)}")
        read(self, item, where)

    def finish(self, instructions: str | None) -> list[Json]:
        """Return the messages, those that begin with system texts with one system message: templates know only one."""
        self._end_turn()
        leading = [{"role": "system", "content": instructions}] if instructions else []
        messages = leading + self.messages
        n_system = next((n for n, message in enumerate(messages) if not _is_system_text(message)), len(messages))
        if n_system < 2:
            return messages
        text = SYSTEM_GAP.join(message["content"] for message in messages[:n_system])
        return [{"role": "system", "content": text}, *messages[n_system:]]

    def read_message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
        parts = _read_parts(item.get("content"), where=f"{where}.content")
        if role == "assistant":
            self._turn_of(item, is_text=True).texts.append("".join(_text_of(parts, where=where)))
            return
        self._end_turn()
        content = _shorten(parts)
        if role != "user" and isinstance(content, list) and all(part["type"] == "text" for part in content):
            content = "\n".join(part["text"] for part in content)
        self.messages.append({"role": _ROLES[role], "content": content})

    def read_reasoning(self, item: Json, where: str) -> None:
        text = _find_reasoning(item, where=where, project_id=self.project_id)
        if text is None:
            self.dropped[f"{where}.encrypted_content"] = "sealed by another server, or for another project"
        elif text:
            self._turn_of(item, is_reasoning=True).reasoning.append(text)

    def read_function_call(self, item: Json, where: str) -> None:
        arguments = _string(item, "arguments", where=where)
        self._add_call(item, arguments, where=where)

    def read_custom_call(self, item: Json, where: str) -> None:
        text = _string(item, "input", where=where)
        self._add_call(item, orjson.dumps({CUSTOM_INPUT: text}).decode(), where=where)

    def read_output(self, item: Json, where: str) -> None:
        call_id = _string(item, "call_id", where=where)
        parts = _read_parts(item.get("output"), where=f"{where}.output")
        self._end_turn()
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": _shorten(parts)})

    def _add_call(self, item: Json, arguments: str, *, where: str) -> None:
        name, namespace = _string(item, "name", where=where), item.get("namespace")
        flat = flatten_name(name, namespace if isinstance(namespace, str) else "")
        function = {"name": flat, "arguments": arguments}
        call = {"id": _string(item, "call_id", where=where), "type": "function", "function": function}
        self._turn_of(item).calls.append(call)

    def _turn_of(self, item: Json, *, is_text: bool = False, is_reasoning: bool = False) -> "_Turn":
        """Return the assistant message that the item belongs to, a new one if the last is over."""
        answer = answer_of_item(item.get("id"))
        turn = self._turn
        if turn is None or turn.ends_before(answer, starts_anew=is_text or is_reasoning):
            self._end_turn()
            turn = self._turn = _Turn(answer)
        return turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.render())
            self._turn = None


class _Turn:
    """One assistant message in the making."""

    def __init__(self, answer: str) -> None:
        self.answer = answer  # which of our answers its items are from, "" when nobody says
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.calls: list[Json] = []

    def ends_before(self, answer: str, *, starts_anew: bool) -> bool:
        """Say whether an item of `answer` belongs to another message.

        Where the ids do not tell: text ends with the next text or thought, but never a call before its output has come.
        """
        if answer and self.answer:
            return answer != self.answer
        return starts_anew and bool(self.texts) and not self.calls

    def render(self) -> Json:
        text = "".join(self.texts)
        message: Json = {"role": "assistant", "content": text if text or not self.calls else None}
        if self.reasoning:
            message["reasoning_content"] = "\n\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


_READERS: dict[str, Callable[[History, Json, str], None]] = {
    "message": History.read_message,
    "reasoning": History.read_reasoning,
    "function_call": History.read_function_call,
    "function_call_output": History.read_output,
    "custom_tool_call": History.read_custom_call,
    "custom_tool_call_output": History.read_output,
}


def strip_instructions(messages: list[Json], instructions: Any) -> list[Json]:
    """Return the messages of an earlier request without its instructions, which hold for that request only."""
    if not isinstance(instructions, str) or not instructions or not messages or not _is_system_text(messages[0]):
        return messages
    text = messages[0]["content"]
    if text == instructions:
        return messages[1:]
    rest = text.removeprefix(instructions + SYSTEM_GAP)
    return [{**messages[0], "content": rest}, *messages[1:]]


def _find_reasoning(item: Json, *, where: str, project_id: str) -> str | None:
    """Return the thought as the model had it, else what the client has of it; None when it is sealed by others."""
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and (text := unseal_reasoning(sealed, project_id=project_id)) is not None:
        return text
    for name, gap in (("content", ""), ("summary", "\n\n")):
        if item.get(name):
            parts = _read_parts(item[name], where=f"{where}.{name}")
            return gap.join(_text_of(parts, where=f"{where}.{name}"))
    return None if sealed else ""


def _read_parts(content: Any, *, where: str) -> list[Json]:
    """Return the content as chat parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise wrong(where, "must be a string or a list of parts")
    return [_read_part(part, where=f"{where}[{place}]") for place, part in enumerate(content)]


def _read_part(part: Any, *, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": _string(part, "text", where=where)}
    if kind == "refusal":
        return {"type": "text", "text": _string(part, "refusal", where=where)}
    if kind == "input_image":
        return _read_image(part, where=where)
    raise wrong(f"{where}.type", "must be input_text, output_text, refusal or input_image: send files as text")


def _read_image(part: Json, *, where: str) -> Json:
    if part.get("file_id"):
        raise wrong(f"{where}.file_id", "is not supported: send the image as `image_url`, a URL or data URL")
    image = {"url": _string(part, "image_url", where=where)}
    if part.get("detail") in _DETAILS:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _text_of(parts: list[Json], *, where: str) -> list[str]:
    if any(part["type"] != "text" for part in parts):
        raise wrong(where, "may only hold text")
    return [part["text"] for part in parts]


def _shorten(parts: list[Json]) -> Any:
    """One text is a string: templates for text models know nothing else."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _is_system_text(message: Json) -> bool:
    return message.get("role") == "system" and isinstance(message.get("content"), str)


def _string(item: Json, name: str, *, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong(f"{where}.{name}", "must be a string")
    return value
