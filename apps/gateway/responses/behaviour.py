"""Responses as a dialect: asked of engines as chat completions, told in items and typed events. Knows no sockets."""

import time
from dataclasses import dataclass
from typing import Any

import orjson

from apps.gateway.capture import AnswerCapture
from apps.gateway.chat.behaviour import make_chat_capture
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest, Voice
from apps.gateway.errors import ApiError, render_openai
from apps.gateway.responses.items import Event
from apps.gateway.responses.logprobs import count_tokens_through, cut_logprobs, show_logprobs
from apps.gateway.responses.memory import recall_messages, resolve_references
from apps.gateway.responses.naming import RESPONSE_PREFIX
from apps.gateway.responses.shapes import ResponsesRequest, check_request, make_request
from apps.gateway.responses.speech import Speech
from apps.gateway.routes import KeyRoute

_CUT_BY = {"length": "max_output_tokens", "content_filter": "content_filter"}
COMPLETED, INCOMPLETE, FAILED, CANCELLED, IN_PROGRESS = "completed", "incomplete", "failed", "cancelled", "in_progress"


class ResponsesDialect:
    """`POST /v1/responses`."""

    name = "responses"
    engine_path = "/v1/chat/completions"
    id_prefix = RESPONSE_PREFIX
    exact_fields: Json = {"return_token_ids": True, "logprobs": True}

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:
        body = check_request(raw)
        earlier: list[Json] = []
        if body.get("previous_response_id") is not None:
            response_id = body["previous_response_id"]
            earlier = await recall_messages(response_id, project_id=key.project_id, writer=desk.writer)
        items = body.get("input") or []
        if isinstance(items, list):
            items = await resolve_references(items, project_id=key.project_id, writer=desk.writer)
        return make_request(body, items=items, earlier=earlier, project_id=key.project_id)

    def open_answer(self, request: ModelRequest, *, response_id: str) -> tuple[AnswerCapture, Voice]:
        assert isinstance(request, ResponsesRequest)  # noqa: S101 (made above)
        capture = make_chat_capture(request, response_id=response_id)
        return capture, ResponsesVoice(request, capture)

    def render_error(self, error: ApiError) -> Json:
        return render_openai(error)


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: str
    reason: str | None = None  # why the answer is incomplete
    error: ApiError | None = None


class ResponsesVoice:
    """Says the chat completion as a response. What a stream has said is what its record says."""

    def __init__(self, request: ResponsesRequest, capture: AnswerCapture) -> None:
        self._request = request
        self._capture = capture
        self._speech = Speech(request.manner, response_id=capture.response_id)
        self._n_events = 0
        self._created = 0
        self._is_finished = False
        self._finish_reason: str | None = None
        self._error: ApiError | None = None

    def render_whole(self, answer: Json) -> Json:
        self._created = self._created or answer.get("created") or int(time.time())
        choice = answer["choices"][0]
        if not self._n_events:
            items = (choice.get("logprobs") or {}).get("content") or []
            content = "".join(self._capture.choices[0].content)  # some servers send parts
            message = {**choice["message"], "content": content}
            self._speech.take(message, logprobs=self._show(cut_logprobs(items, content)))
            self._finish_reason = choice.get("finish_reason")
        self._finish()
        return self._render()

    def render_chunk(self, chunk: Json) -> bytes:
        out = self._begin(chunk.get("created"))
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            items = (choice.get("logprobs") or {}).get("content") or []
            out += self._write(self._speech.take(delta, logprobs=self._show(items) if delta.get("content") else []))
            if choice.get("finish_reason") is not None:
                self._finish_reason = choice["finish_reason"]
                out += self._write(self._finish())
        return out

    def render_end(self) -> bytes:
        response = self._render()
        return self._write([(f"response.{response['status']}", {"response": response})])

    def render_break(self, error: ApiError) -> bytes:
        out = self._begin(None)
        self._error = error
        self._finish()
        told = render_openai(error)["error"]
        fault = {"code": error.code, "message": error.message, "param": error.param, "error": told}
        return out + self._write([("error", fault), ("response.failed", {"response": self._render()})])

    def _begin(self, created: Any) -> bytes:
        """Return the events that begin the stream, once."""
        if self._n_events:
            return b""
        self._created = created or int(time.time())
        response = orjson.Fragment(orjson.dumps(self._render(IN_PROGRESS)))
        return self._write([(f"response.{kind}", {"response": response}) for kind in ("created", IN_PROGRESS)])

    def _finish(self) -> list[Event]:
        if self._is_finished:
            return []
        self._is_finished = True
        return self._speech.finish(is_cut=self._outcome().status != COMPLETED)

    def _outcome(self) -> _Outcome:
        if self._error is not None:
            return _Outcome(FAILED, error=self._error)
        if self._finish_reason is None:
            return _Outcome(CANCELLED)  # the client left
        reason = _CUT_BY.get(self._finish_reason)
        return _Outcome(INCOMPLETE, reason) if reason else _Outcome(COMPLETED)

    def _render(self, status: str = "") -> Json:
        outcome = _Outcome(status) if status else self._outcome()
        return {
            "id": self._capture.response_id,
            "object": "response",
            "created_at": self._created,
            "status": outcome.status,
            "error": _render_fault(outcome.error),
            "incomplete_details": {"reason": outcome.reason} if outcome.reason else None,
            **self._request.echo,
            "output": self._speech.render_items(),
            "usage": self._render_usage(),
        }

    def _render_usage(self) -> Json | None:
        usage = self._capture.usage
        if usage is None:
            return None
        n_in, n_out = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
        return {
            "input_tokens": n_in,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": n_out,
            "output_tokens_details": {"reasoning_tokens": self._count_thought() if thought is None else thought},
            "total_tokens": n_in + n_out,
        }

    def _count_thought(self) -> int:
        """vLLM does not tell it in a chat completion's usage."""
        choice = self._capture.choices.get(0)
        return count_tokens_through(choice.tokens, "".join(choice.reasoning)) if choice else 0

    def _show(self, items: list[Json]) -> list[Json]:
        return show_logprobs(items) if self._request.wishes.logprobs else []

    def _write(self, events: list[Event]) -> bytes:
        """Return the events as bytes, each with its number."""
        out = []
        for kind, fields in events:
            data = orjson.dumps({"type": kind, "sequence_number": self._n_events, **fields})
            out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
            self._n_events += 1
        return b"".join(out)


def _render_fault(error: ApiError | None) -> Json | None:
    """Clients act on the code (Codex compacts at `context_length_exceeded`)."""
    if error is None:
        return None
    code = error.code if error.status < 500 and error.code else "server_error"
    return {"code": code, "message": error.message}
