"""How a client asks and hears in each of the gateway's dialects, with its conversation as it keeps it itself."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.world import MODEL

Json = dict[str, Any]


@dataclass(kw_only=True)
class Said:
    """What has come of one answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # where the dialect tells them
    response_id: str = ""
    output: list[Json] = field(default_factory=list)  # the items of a response
    is_whole: bool = False
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One question and, but for the last turn, the answer that the client has."""

    question: str
    said: Said | None = None


class Dialect:
    """One way to speak. `tells_tokens`: the client hears the ids too."""

    name = ""
    path = ""
    tells_tokens = False

    def ask(self, turns: Sequence[Turn], *, n_words: int, is_streamed: bool) -> Json:
        """Return the request's body."""
        raise NotImplementedError

    def read_whole(self, body: Json) -> Said:
        raise NotImplementedError

    def hear(self, data: str, said: Said) -> None:
        """Add one event's data to what was said."""
        raise NotImplementedError


def messages_of(turns: Sequence[Turn]) -> list[Json]:
    """Return the conversation as chat messages."""
    messages: list[Json] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn.question})
        if turn.said is not None:
            messages.append({"role": "assistant", "content": turn.said.text})
    return messages


class Chat(Dialect):
    name = "chat"
    path = "/v1/chat/completions"
    tells_tokens = True

    def ask(self, turns: Sequence[Turn], *, n_words: int, is_streamed: bool) -> Json:
        body = {"model": MODEL, "messages": messages_of(turns), "max_tokens": n_words, "stream": is_streamed}
        return body | {"return_token_ids": True}

    def read_whole(self, body: Json) -> Said:
        (choice,) = body["choices"]
        text, token_ids = choice["message"]["content"], choice["token_ids"]
        return Said(text=text, token_ids=token_ids, response_id=body["id"], is_whole=True)

    def hear(self, data: str, said: Said) -> None:
        if data == "[DONE]":
            said.is_whole = not said.error
            return
        event = json.loads(data)
        said.error = str(event.get("error") or "")
        said.response_id = event.get("id", said.response_id)
        for choice in event.get("choices", ()):
            said.text += choice["delta"].get("content") or ""
            said.token_ids += choice.get("token_ids") or ()


class Responses(Dialect):
    """With the whole conversation in each request, as Codex speaks."""

    name = "responses"
    path = "/v1/responses"

    def ask(self, turns: Sequence[Turn], *, n_words: int, is_streamed: bool) -> Json:
        return {"model": MODEL, "max_output_tokens": n_words, "stream": is_streamed} | self.input_of(turns)

    def input_of(self, turns: Sequence[Turn]) -> Json:
        """Return the members that say what was said before."""
        items: list[Json] = []
        for turn in turns:
            items.append({"role": "user", "content": turn.question})
            items += turn.said.output if turn.said else ()
        return {"input": items}

    def read_whole(self, body: Json) -> Said:
        said = Said(response_id=body["id"], output=body["output"], is_whole=body["status"] == "completed")
        said.text = "".join(part["text"] for item in body["output"] for part in item["content"])
        return said

    def hear(self, data: str, said: Said) -> None:
        event = json.loads(data)
        if event["type"] == "response.output_text.delta":
            said.text += event["delta"]
        elif event["type"] == "response.completed":
            heard = self.read_whole(event["response"])
            said.response_id, said.output = heard.response_id, heard.output
            said.is_whole = heard.is_whole and heard.text == said.text
            said.error = "" if said.is_whole else f"the deltas say {said.text!r} and the end {heard.text!r}"
        elif event["type"] in {"response.failed", "error"}:
            said.error = str(event)


class ChainedResponses(Responses):
    """Each request names the answer before. The conversation lies in Postgres, or in the spool while that is away."""

    name = "chained"

    def input_of(self, turns: Sequence[Turn]) -> Json:
        said = turns[-2].said if len(turns) > 1 else None
        return {"input": turns[-1].question} | ({"previous_response_id": said.response_id} if said else {})


class Messages(Dialect):
    name = "messages"
    path = "/v1/messages"

    def ask(self, turns: Sequence[Turn], *, n_words: int, is_streamed: bool) -> Json:
        return {"model": MODEL, "messages": messages_of(turns), "max_tokens": n_words, "stream": is_streamed}

    def read_whole(self, body: Json) -> Said:
        text = "".join(block["text"] for block in body["content"])
        return Said(text=text, response_id=body["id"], is_whole=body["stop_reason"] == "end_turn")

    def hear(self, data: str, said: Said) -> None:
        event = json.loads(data)
        if event["type"] == "message_start":
            said.response_id = event["message"]["id"]
        elif event["type"] == "content_block_delta":
            said.text += event["delta"]["text"]
        elif event["type"] == "message_stop":
            said.is_whole = True
        elif event["type"] == "error":
            said.error = str(event)


SELF_CONTAINED: tuple[Dialect, ...] = (Chat(), Responses(), Messages())
ALL: tuple[Dialect, ...] = (*SELF_CONTAINED, ChainedResponses())
