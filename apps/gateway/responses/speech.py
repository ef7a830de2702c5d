"""One answer as items, in the order in which the model spoke. Fed with a chat completion's deltas, or with all of it.

Knows no response around the items, no sequence numbers and no bytes.
"""

from dataclasses import dataclass

from apps.gateway.dialect import Json
from apps.gateway.responses.items import (
    COMPLETED,
    INCOMPLETE,
    CallItem,
    Event,
    FreeformItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from apps.gateway.responses.tools import ToolBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What the client asked for beside the answer itself."""

    tools: ToolBook
    is_summary: bool  # thoughts as summary
    sealed_for: str  # the project whose clients bring thoughts back, "" where none are wanted


class LateDeltaError(LookupError):
    """An engine goes on with a call that it had ended."""


class Speech:
    """The items so far; only the last one is open."""

    def __init__(self, manner: Manner, *, response_id: str) -> None:
        self.manner = manner
        self.response_id = response_id
        self.items: list[Item] = []
        self._calls: dict[int, CallItem] = {}
        self._space = ""  # after a call: space alone is not worth a message

    def render_items(self) -> list[Json]:
        return [item.render() for item in self.items]

    def take(self, delta: Json, *, logprobs: list[Json]) -> list[Event]:
        """Return the events that a delta becomes."""
        events: list[Event] = []
        if text := delta.get("reasoning_content"):
            events += self._take_reasoning(text)
        if text := delta.get("content"):
            events += self._take_text(text, logprobs=logprobs)
        if text := delta.get("refusal"):
            events += self._take_text(text, logprobs=[], is_refusal=True)
        for place, part in enumerate(delta.get("tool_calls") or ()):
            events += self._take_call(part, place=place)
        return events

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events that end the last item; an answer that said nothing is an empty message."""
        events: list[Event] = []
        if not self.items and not is_cut:
            events += self._take_text("", logprobs=[])
        return events + self._close(INCOMPLETE if is_cut else COMPLETED)

    def _take_reasoning(self, text: str) -> list[Event]:
        events, item = [], self._last
        if not isinstance(item, ReasoningItem):
            place, manner = len(self.items), self.manner
            item = ReasoningItem(self.response_id, place, manner.is_summary, manner.sealed_for)
            events = self._push(item)
        return events + item.feed(text)

    def _take_text(self, text: str, *, logprobs: list[Json], is_refusal: bool = False) -> list[Event]:
        events, item = [], self._last
        if not isinstance(item, MessageItem):
            text, self._space = self._space + text, ""
            if self._calls and not text.strip():
                self._space = text
                return []
            item = MessageItem(self.response_id, len(self.items))
            events = self._push(item)
        return events + item.feed(text, logprobs=logprobs, is_refusal=is_refusal)

    def _take_call(self, part: Json, *, place: int) -> list[Event]:
        index = part.get("index", place)
        function = part.get("function") or {}
        events: list[Event] = []
        if index not in self._calls:
            call = self._make_call(part["id"], function.get("name") or "")
            events = self._push(call)
            self._calls[index] = call
        call = self._calls[index]
        if call is not self._last:
            raise LateDeltaError(f"call {index} goes on after it had ended")
        return events + call.feed(function.get("arguments") or "")

    def _make_call(self, call_id: str, function: str) -> CallItem:
        tool = self.manner.tools.name_of(function)
        kind = FreeformItem if tool.is_custom else CallItem
        return kind(self.response_id, len(self.items), call_id, tool)

    def _push(self, item: Item) -> list[Event]:
        events = self._close(COMPLETED)
        self.items.append(item)
        return events + item.open()

    def _close(self, status: str) -> list[Event]:
        return self._last.close(status=status) if self._last else []

    @property
    def _last(self) -> Item | None:
        return self.items[-1] if self.items else None
