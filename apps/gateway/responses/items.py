"""The items of an answer as they grow, and the events that say so. Each is opened, fed, closed, and then shown.

An item knows its place and its own words; which deltas it gets is decided elsewhere (`speech.py`).
"""

from dataclasses import dataclass, field
from typing import Any

from apps.gateway.dialect import Json
from apps.gateway.responses.freeform import FreeformReader
from apps.gateway.responses.naming import name_item
from apps.gateway.responses.sealing import seal_reasoning
from apps.gateway.responses.tools import ToolName

Event = tuple[str, Json]
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


@dataclass(slots=True)
class Item:
    """What all items share. `status` is that of the item as it is shown now."""

    prefix = ""

    response_id: str
    place: int
    status: str = field(default=IN_PROGRESS, init=False)

    @property
    def id(self) -> str:
        return name_item(self.prefix, response_id=self.response_id, place=self.place)

    def render(self) -> Json:
        """Return the item as it is now."""
        raise NotImplementedError

    def open(self) -> list[Event]:
        """Return the events that begin the item."""
        return [("response.output_item.added", {"output_index": self.place, "item": self.render()})]

    def close(self, *, status: str) -> list[Event]:
        """Return the events that end the item."""
        self.status = status
        return [*self._finish(), ("response.output_item.done", {"output_index": self.place, "item": self.render()})]

    def _finish(self) -> list[Event]:
        raise NotImplementedError

    def _say(self, kind: str, **fields: Any) -> Event:
        return f"response.{kind}", {"item_id": self.id, "output_index": self.place, **fields}


@dataclass(slots=True)
class ReasoningItem(Item):
    """The model's thoughts: as the summary where the client asked for one, else as they are.

    Agents show and replay the summary; there is nobody here who would write another.
    """

    prefix = "rs"

    is_summary: bool
    sealed_for: str  # the id of a project, "" where it is not sealed
    text: list[str] = field(default_factory=list, init=False)
    sealed: str | None = field(default=None, init=False)

    def render(self) -> Json:
        parts = [self._part()] if self.text else []
        item: Json = {"id": self.id, "type": "reasoning", "summary": parts if self.is_summary else []}
        if not self.is_summary:
            item["content"] = parts
        if self.sealed_for:
            item["encrypted_content"] = self.sealed
        return item | {"status": self.status}

    def feed(self, text: str) -> list[Event]:
        events = [] if self.text else self._open_part()
        self.text.append(text)
        name = "reasoning_summary_text.delta" if self.is_summary else "reasoning_text.delta"
        return [*events, self._say(name, **self._at(), delta=text)]

    def _open_part(self) -> list[Event]:
        name = "reasoning_summary_part.added" if self.is_summary else "content_part.added"
        return [self._say(name, **self._at(), part=self._part())]

    def _finish(self) -> list[Event]:
        if not self.text:
            return []
        if self.sealed_for:
            self.sealed = seal_reasoning("".join(self.text), project_id=self.sealed_for)
        kind, part = (
            ("reasoning_summary", "reasoning_summary_part") if self.is_summary else ("reasoning", "content_part")
        )
        done = self._say(f"{kind}_text.done", **self._at(), text="".join(self.text))
        return [done, self._say(f"{part}.done", **self._at(), part=self._part())]

    def _part(self) -> Json:
        return {"type": "summary_text" if self.is_summary else "reasoning_text", "text": "".join(self.text)}

    def _at(self) -> Json:
        return {"summary_index" if self.is_summary else "content_index": 0}


@dataclass(slots=True)
class _Part:
    """One piece of a message: text, or a refusal."""

    is_refusal: bool
    text: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    def render(self) -> Json:
        text = "".join(self.text)
        if self.is_refusal:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs}


@dataclass(slots=True)
class MessageItem(Item):
    """What the model says to the user."""

    prefix = "msg"

    parts: list[_Part] = field(default_factory=list, init=False)

    def render(self) -> Json:
        content = [part.render() for part in self.parts]
        return {"id": self.id, "type": "message", "role": "assistant", "content": content, "status": self.status}

    def feed(self, text: str, *, logprobs: list[Json], is_refusal: bool = False) -> list[Event]:
        events: list[Event] = []
        if not self.parts or self.parts[-1].is_refusal != is_refusal:
            events = self._switch(_Part(is_refusal))
        part = self.parts[-1]
        part.text.append(text)
        part.logprobs += logprobs
        if is_refusal:
            return [*events, self._say("refusal.delta", **self._at(), delta=text)]
        return [*events, self._say("output_text.delta", **self._at(), delta=text, logprobs=logprobs)]

    def _switch(self, part: _Part) -> list[Event]:
        events = self._finish()
        self.parts.append(part)
        return [*events, self._say("content_part.added", **self._at(), part=part.render())]

    def _finish(self) -> list[Event]:
        if not self.parts:
            return []
        part = self.parts[-1]
        text = "".join(part.text)
        if part.is_refusal:
            done = self._say("refusal.done", **self._at(), refusal=text)
        else:
            done = self._say("output_text.done", **self._at(), text=text, logprobs=part.logprobs)
        return [done, self._say("content_part.done", **self._at(), part=part.render())]

    def _at(self) -> Json:
        return {"content_index": len(self.parts) - 1}


@dataclass(slots=True)
class CallItem(Item):
    """A call of a function."""

    prefix = "fc"

    call_id: str
    tool: ToolName
    text: list[str] = field(default_factory=list, init=False)

    def render(self) -> Json:
        item = {"id": self.id, "type": "function_call", "call_id": self.call_id, "name": self.tool.name}
        item |= {"namespace": self.tool.namespace} if self.tool.namespace else {}
        return item | {"arguments": "".join(self.text), "status": self.status}

    def feed(self, arguments: str) -> list[Event]:
        if not arguments:
            return []
        self.text.append(arguments)
        return [self._say("function_call_arguments.delta", delta=arguments)]

    def _finish(self) -> list[Event]:
        done = {"name": self.tool.name, "arguments": "".join(self.text)}
        return [self._say("function_call_arguments.done", **done)]


@dataclass(slots=True)
class FreeformItem(CallItem):
    """A call of a freeform tool: the model wrote a function's arguments, the client reads the text in them."""

    prefix = "ctc"

    reader: FreeformReader = field(default_factory=FreeformReader, init=False)

    def render(self) -> Json:
        item = {"id": self.id, "type": "custom_tool_call", "call_id": self.call_id, "name": self.tool.name}
        item |= {"namespace": self.tool.namespace} if self.tool.namespace else {}
        return item | {"input": "".join(self.text), "status": self.status}

    def feed(self, arguments: str) -> list[Event]:
        return self._hear(self.reader.feed(arguments))

    def _hear(self, text: str) -> list[Event]:
        if not text:
            return []
        self.text.append(text)
        return [self._say("custom_tool_call_input.delta", delta=text)]

    def _finish(self) -> list[Event]:
        return [*self._hear(self.reader.end()), self._say("custom_tool_call_input.done", input="".join(self.text))]
