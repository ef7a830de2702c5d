"""One exchange, read: what was asked, what was answered, with which tokens.

Reads the chat form that the gateway keeps of every dialect; knows no sessions, and no rows but the exchange itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories import messages as chat
from apps.trajectories.constraints import find_constraints
from apps.trajectories.known_messages import Request, guess_conversation, know, read_request
from apps.trajectories.marks import Marks, read_marks, read_raw_body
from apps.trajectories.messages import Message, hash_bytes, hash_text
from apps.trajectories.models import Exchange, ExchangeStatus
from apps.trajectories.sessions import Story, read_story

CHAT = "chat"  # the dialect whose own request and answer are in chat form
GENERATE = "generate"  # the dialect of calls in tokens: they have no messages
_NOT_JSON = (ValueError, RecursionError)


class UnreadableExchange(ValueError):
    """The exchange cannot become steps; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One choice. Token ids are int32 and log-probs float32, packed, both of length T; empty when not exact."""

    choice: int
    message: dict[str, Any]
    finish_reason: str
    token_ids: bytes
    logprobs: bytes
    is_exact: bool


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Parameters that the log-probs depend on, as sent to the engine."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True, kw_only=True)
class Call:
    """An exchange in the shapes that folding works with."""

    exchange: Exchange
    messages: list[Message]
    tools: list[Any]
    answers: list[Answer]
    sampling: Sampling
    marks: Marks
    body_digest: str
    constraints: str  # what bent the sampling, by name

    @cached_property
    def story(self) -> Story:
        return read_story(self.messages)

    @property
    def is_failed(self) -> bool:
        """Whether the client did not get the whole answer."""
        return self.exchange.status != ExchangeStatus.COMPLETE

    @property
    def is_in_tokens(self) -> bool:
        """Whether it tells nothing but tokens, so that messages cannot say what it goes on from."""
        return self.exchange.dialect == GENERATE

    @cached_property
    def tools_json(self) -> str:
        """The tool definitions in one canonical spelling, "" when there are none."""
        return chat.dump_json(self.tools) if self.tools else ""

    @cached_property
    def tools_digest(self) -> str:
        return hash_text(self.tools_json) if self.tools else ""

    @cached_property
    def chain(self) -> str:
        """Calls of one chain have the same system text and tools."""
        return _hash_chain(chat.system_text(self.messages), self.tools_digest)


@lru_cache(maxsize=100)  # few, and the texts are long
def _hash_chain(system: str, tools_digest: str) -> str:
    return hash_text(system, tools_digest)


def read_call(exchange: Exchange) -> Call:
    """Return the call; raises UnreadableExchange when an answered one does not have the chat shape."""
    is_failed = exchange.status == ExchangeStatus.ERROR
    asked = _read_request(exchange, is_optional=is_failed)
    body: dict[str, Any] = asked.body
    headers = {name.lower(): str(value) for name, value in _read_object(exchange.headers, what="headers").items()}
    messages = body.get("messages", [])
    if not isinstance(messages, list):
        if not is_failed:
            raise UnreadableExchange("the request's messages are not a list")
        messages = []
    given = body.get("tools")
    tools: list[Any] = given if isinstance(given, list) else []
    parameters, sampling = _read_sampling(bytes(exchange.sampling))
    request = bytes(exchange.request)
    is_raw = exchange.dialect == CHAT and exchange.chat_request is None  # what was read is what the client sent
    raw = body if is_raw else read_raw_body(request)
    return Call(
        exchange=exchange,
        messages=messages,
        tools=tools,
        answers=_read_answers(exchange),
        sampling=sampling,
        marks=read_marks(headers, raw, session_key=exchange.session_key),
        body_digest=asked.digest if is_raw and request else hash_bytes(request),
        constraints=", ".join(find_constraints(parameters, tools)),
    )


def _chat_request(exchange: Exchange) -> bytes:
    if exchange.chat_request is not None:
        return bytes(exchange.chat_request)
    if exchange.dialect == CHAT:
        return bytes(exchange.request)
    if exchange.status == ExchangeStatus.ERROR:  # refused before it was rendered
        return b""
    raise UnreadableExchange(f"the gateway kept no chat form of this call of the dialect {exchange.dialect!r}")


def _read_request(exchange: Exchange, *, is_optional: bool) -> Request:
    data = _chat_request(exchange)
    session = exchange.trajectory_id or exchange.session_key or exchange.stem_id or guess_conversation(data)
    try:
        request = read_request(data or b"{}", conversation=f"{exchange.key_id} {session}")
    except _NOT_JSON as error:
        return Request(_take_object(error, what="request", is_optional=is_optional), hash_bytes(data))
    return Request(_take_object(request.body, what="request", is_optional=is_optional), request.digest)


def _chat_response(exchange: Exchange) -> bytes:
    if exchange.chat_response is not None:
        return bytes(exchange.chat_response)
    return bytes(exchange.response or b"") if exchange.dialect == CHAT else b""


def _read_object(data: bytes | memoryview, *, what: str, is_optional: bool = False) -> dict[str, Any]:
    try:
        value = json.loads(bytes(data) or b"{}")
    except _NOT_JSON as error:
        value = error
    return _take_object(value, what=what, is_optional=is_optional)


def _take_object(value: Any, *, what: str, is_optional: bool) -> dict[str, Any]:
    """Return what was read if it is an object; if not, or if it is the error of reading it, say so."""
    if isinstance(value, dict):
        return value
    if is_optional:
        return {}
    if isinstance(value, Exception):
        raise UnreadableExchange(f"the {what} is not JSON: {value}") from value
    raise UnreadableExchange(f"the {what} is not a JSON object")


def _read_answers(exchange: Exchange) -> list[Answer]:
    response = _chat_response(exchange)
    if not response:
        return []
    is_optional = exchange.status == ExchangeStatus.ERROR
    choices = _read_object(response, what="response", is_optional=is_optional).get("choices")
    answers = [
        _read_answer(exchange, place, choice)
        for place, choice in enumerate(choices if isinstance(choices, list) else [])
    ]
    if exchange.status == ExchangeStatus.COMPLETE and not answers:
        raise UnreadableExchange("the response has no choices")
    if len({answer.choice for answer in answers}) != len(answers):
        raise UnreadableExchange("two choices of the response have the same index")
    return [answer for answer in answers if _says_something(exchange, answer)]


def _says_something(exchange: Exchange, answer: Answer) -> bool:
    """A call that was cut before its first token has no action to keep."""
    is_whole = exchange.status == ExchangeStatus.COMPLETE
    return is_whole or bool(answer.token_ids or answer.message.get("content") or answer.message.get("tool_calls"))


def _read_answer(exchange: Exchange, place: int, choice: Any) -> Answer:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise UnreadableExchange(f"choice {place} of the response has no message")
    index = choice.get("index", place)
    if not isinstance(index, int) or not 0 <= index < 2**15:
        raise UnreadableExchange(f"choice {place} of the response has the index {index!r}")
    token_ids, logprobs = _read_tokens(exchange, index)
    return Answer(
        choice=index,
        message=know(message),
        finish_reason=chat.clean_text(str(choice.get("finish_reason") or ""))[:30],
        token_ids=token_ids,
        logprobs=logprobs,
        is_exact=bool(
            exchange.is_exact and exchange.prompt_token_ids and token_ids and len(token_ids) == len(logprobs)
        ),
    )


def _read_tokens(exchange: Exchange, index: int) -> tuple[bytes, bytes]:
    """Return the choice's ids and log-probs, each empty when the engine gave none or only part of a number."""
    ids = bytes(exchange.completion_token_ids[index]) if index < len(exchange.completion_token_ids) else b""
    logprobs = bytes(exchange.completion_logprobs[index]) if index < len(exchange.completion_logprobs) else b""
    return (ids if len(ids) % ID_BYTES == 0 else b"", logprobs if len(logprobs) % ID_BYTES == 0 else b"")


@lru_cache(maxsize=1000)  # an agent's calls have few
def _read_sampling(data: bytes) -> tuple[Mapping[str, Any], Sampling]:
    """Return all parameters, which nobody may change, and what the log-probs depend on."""
    values, default = _read_object(data, what="sampling"), Sampling()
    return values, Sampling(
        temperature=float(_number(values, "temperature", default.temperature)),
        top_p=float(_number(values, "top_p", default.top_p)),
        top_k=max(-1, min(int(_number(values, "top_k", default.top_k)), 2**31 - 1)),  # what the column holds
    )


def _number(values: Mapping[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    return value if isinstance(value, (int, float)) else default
