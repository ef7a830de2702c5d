"""Says a captured chat answer in Anthropic's words, whole or as events.

A stream's blocks follow each other as the engine brings reasoning, text and tool calls. Knows no sockets.
"""

import base64
from collections.abc import Iterator

import orjson

from apps.gateway.capture import AnswerCapture, ChoiceCapture
from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError
from apps.gateway.messages.errors import render_anthropic
from apps.gateway.prompt_form import UNPARSED

_THINKING, _TEXT = ("thinking", 0), ("text", 0)


class MessagesVoice:
    """One answer. The capture knows what came before; the voice knows which block is open."""

    def __init__(self, capture: AnswerCapture) -> None:
        self._capture = capture
        self._n_blocks = 0
        self._open: tuple[str, int] | None = None  # kind, and a tool call's own number
        self._has_started = False
        self._stop_sequence: str | None = None

    def render_whole(self, answer: Json) -> Json:
        """Return the message, also of an answer that broke off."""
        choices = answer.get("choices") or [{}]
        message = choices[0].get("message") or {}
        stop_sequence = _read_stop_sequence(choices[0]) or self._stop_sequence
        reason = _find_stop_reason(
            choices[0].get("finish_reason"), has_calls=bool(message.get("tool_calls")), stop_sequence=stop_sequence
        )
        return {
            **self._head(),
            "content": list(self._blocks(message)) or [{"type": "text", "text": ""}],
            "stop_reason": reason,
            "stop_sequence": stop_sequence if reason == "stop_sequence" else None,
            "usage": render_usage(answer.get("usage")),
        }

    def render_chunk(self, chunk: Json) -> bytes:
        return b"".join([*self._start(), *self._say(chunk)])

    def render_end(self) -> bytes:
        choice = self._capture.choices.get(0) or ChoiceCapture()
        reason = _find_stop_reason(
            choice.finish_reason, has_calls=bool(choice.tool_calls), stop_sequence=self._stop_sequence
        )
        sequence = self._stop_sequence if reason == "stop_sequence" else None
        events = [*self._start()]
        if not self._n_blocks:
            events += self._open_block(_TEXT)
        events += self._close()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        events.append(_event("message_delta", delta=delta, usage=render_usage(self._capture.usage)))
        events.append(_event("message_stop"))
        return b"".join(events)

    def render_break(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(render_anthropic(error))

    def _head(self) -> Json:
        capture = self._capture
        return {"id": capture.response_id, "type": "message", "role": "assistant", "model": capture.model}

    def _start(self) -> Iterator[bytes]:
        if self._has_started:
            return
        self._has_started = True
        usage = render_usage({"prompt_tokens": len(self._capture.prompt_token_ids or ())})
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)
        yield _event("ping")

    def _say(self, chunk: Json) -> Iterator[bytes]:
        for choice in chunk.get("choices") or ():
            self._stop_sequence = _read_stop_sequence(choice) or self._stop_sequence
            delta = choice.get("delta") or {}
            if text := delta.get("reasoning_content"):
                yield from self._go_on(_THINKING, type="thinking_delta", thinking=text)
            if text := delta.get("content"):
                yield from self._go_on(_TEXT, type="text_delta", text=text)
            for part in delta.get("tool_calls") or ():
                key = ("tool_use", part.get("index") or 0)
                arguments = (part.get("function") or {}).get("arguments")
                if arguments:
                    yield from self._go_on(key, type="input_json_delta", partial_json=arguments)
                else:
                    yield from self._open_block(key)

    def _go_on(self, key: tuple[str, int], **delta: str) -> Iterator[bytes]:
        """Say a piece of a block, opening it first if need be."""
        yield from self._open_block(key)
        yield _event("content_block_delta", index=self._n_blocks - 1, delta=delta)

    def _open_block(self, key: tuple[str, int]) -> Iterator[bytes]:
        if self._open == key:
            return
        yield from self._close()
        self._open = key
        self._n_blocks += 1
        yield _event("content_block_start", index=self._n_blocks - 1, content_block=self._empty_block(key))

    def _empty_block(self, key: tuple[str, int]) -> Json:
        if key == _THINKING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        if key == _TEXT:
            return {"type": "text", "text": ""}
        call = self._capture.choices[0].tool_calls[key[1]]
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        index = self._n_blocks - 1
        if self._open == _THINKING:
            delta = {"type": "signature_delta", "signature": self._sign()}
            yield _event("content_block_delta", index=index, delta=delta)
        self._open = None
        yield _event("content_block_stop", index=index)

    def _sign(self) -> str:
        """Return a signature. Nobody checks it here: it says which answer the thought is from."""
        return base64.b64encode(self._capture.response_id.encode()).decode()

    def _blocks(self, message: Json) -> Iterator[Json]:
        if text := message.get("reasoning_content"):
            yield {"type": "thinking", "thinking": text, "signature": self._sign()}
        if text := message.get("content"):
            yield {"type": "text", "text": text}
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = _parse_arguments(function.get("arguments") or "")
            yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def render_usage(usage: Json | None) -> Json:
    """Return the counts in Anthropic's way: what came out of the prefix cache stands apart."""
    usage = usage or {}
    n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max(0, (usage.get("prompt_tokens") or 0) - n_cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _read_stop_sequence(choice: Json) -> str | None:
    """Return the stop sequence that was met; vLLM says a token's number when it was an end token."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else None


def _find_stop_reason(finish_reason: str | None, *, has_calls: bool, stop_sequence: str | None) -> str | None:
    if finish_reason is None:
        return None
    if finish_reason == "length":
        return "max_tokens"
    if finish_reason == "content_filter":
        return "refusal"
    if has_calls:  # a forced call ends with "stop"
        return "tool_use"
    return "stop_sequence" if stop_sequence is not None else "end_turn"


def _parse_arguments(text: str) -> Json:
    try:
        value = orjson.loads(text or "{}")
        orjson.dumps([[[[value]]]])  # it reads deeper than it writes
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: text}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
