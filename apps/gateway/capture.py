"""Takes an engine's answer apart: what the client gets, and exactly what the engine sampled.

Feeds on chat completions (chunks or a whole one) as vLLM sends them with `return_token_ids` and `logprobs`. It gives
the answer our own ids, strips what the client did not ask for, and keeps ids and log-probs as they came. Nothing is
tokenised.
"""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.counted import count_of
from apps.gateway.token_check import COUNT, Expectations, Said, find_difference

Json = dict[str, Any]
T = TypeVar("T")
_ENGINE_ONLY = frozenset({"prompt_text", "prompt_logprobs", "kv_transfer_params", "ec_transfer_params", "metrics"})


def new_call_id() -> str:
    """Return a tool call's id. Letters and digits only: some clients strip the rest, which would break the anchor."""
    return f"call{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the client asked to see beside the answer itself."""

    usage: bool = True
    logprobs: bool = False
    token_ids: bool = False


@dataclass(slots=True)
class ToolCall:
    id: str = field(default_factory=new_call_id)
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def render(self) -> Json:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class ChoiceCapture:
    """One choice as far as it has come."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    tool_calls: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)  # as text, to compare with what was said

    def render(self, index: int) -> Json:
        """Return the choice in the non-streamed shape."""
        calls = [call.render() for _, call in sorted(self.tool_calls.items())]
        text = "".join(self.content)
        message: Json = {"role": "assistant", "content": text if text or not calls else None}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.refusal:
            message["refusal"] = "".join(self.refusal)
        if calls:
            message["tool_calls"] = calls
        return {"index": index, "message": message, "logprobs": None, "finish_reason": self.finish_reason}

    def has_exact_tokens(self) -> bool:
        """Whether each token from the first to the end token has its id and its log-prob."""
        return 0 < len(self.token_ids) == len(self.logprobs) and self.finish_reason is not None

    def said(self) -> Said:
        """Return the answer in the form that its tokens are compared with."""
        return Said(
            texts=[text for text in (self.reasoning, self.content, self.refusal) if text],
            calls=[(call.name, "".join(call.arguments)) for _, call in sorted(self.tool_calls.items())],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class AnswerCapture:
    """Everything about one answer. `response_id` and `model` are what the client is told."""

    def __init__(
        self,
        *,
        response_id: str,
        model: str,
        n_choices: int,
        wishes: Wishes,
        expectations: Expectations | None = None,
    ) -> None:
        self.response_id = response_id
        self.model = model
        self.n_choices = n_choices
        self.wishes = wishes
        self.expectations = expectations or Expectations()
        self.choices: dict[int, ChoiceCapture] = {}
        self.prompt_token_ids: list[int] | None = None
        self.usage: Json | None = None
        self.created = 0
        self.fingerprint: str | None = None
        self._n_finished = 0

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended: what follows is usage and the end mark."""
        return self._n_finished >= self.n_choices

    def take_chunk(self, chunk: Json) -> bool:
        """Record a chunk of a stream and turn it into what the client gets; says whether it gets it at all."""
        self._take_head(chunk, kind="chat.completion.chunk")
        if "usage" in chunk and not self.wishes.usage:
            del chunk["usage"]
        is_worth_sending = bool(chunk.get("usage"))
        for choice in chunk.get("choices") or ():
            capture = self._choice(choice)
            delta = choice.get("delta")
            if delta:
                _take_said(capture, delta)
                for part in delta.get("tool_calls") or ():
                    _take_tool_call(capture, part)
            is_worth_sending |= self._take_tokens(capture, choice) or bool(delta)
        return is_worth_sending

    def take_whole(self, answer: Json) -> None:
        """Record a whole answer and turn it into what the client gets.

        Raises LookupError and TypeError for one that is none, or that the pool could not read.
        """
        self._take_head(answer, kind="chat.completion")
        choices = _of_kind(list, answer["choices"])
        for choice in choices:
            capture = self._choice(choice)
            message = _of_kind(dict, choice["message"])
            _take_said(capture, message)
            for index, call in enumerate(message.get("tool_calls") or ()):
                _take_tool_call(capture, call, index=index)
            self._take_tokens(capture, choice)
            if capture.finish_reason is None:  # a whole answer has ended; some agents ask for ever until they read it
                choice["finish_reason"] = "tool_calls" if capture.tool_calls else "stop"
                self._finish(capture, choice["finish_reason"])
            choice.pop("routed_experts", None)
        if not choices or len(choices) != len(self.choices):
            raise LookupError(f"of {count_of(len(choices), 'choice')} {len(self.choices)} have a place of their own")

    def render(self) -> Json:
        """Return what has come of a stream, in the non-streamed shape."""
        return {
            "id": self.response_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice.render(index) for index, choice in sorted(self.choices.items())],
            "usage": self.usage,
            "system_fingerprint": self.fingerprint,
        }

    def packed_tokens(self) -> "PackedTokens":
        """Return ids and log-probs as bytes, each at its choice's own place, and whether they are all there."""
        choices = [self.choices.get(index) or ChoiceCapture() for index in range(self.n_choices if self.choices else 0)]
        try:
            return PackedTokens(
                prompt=None if self.prompt_token_ids is None else pack_ids(self.prompt_token_ids),
                completions=tuple(pack_ids(choice.token_ids) for choice in choices),
                logprobs=tuple(pack_logprobs(choice.logprobs) for choice in choices),
                is_exact=self._is_exact(choices),
            )
        except (TypeError, OverflowError):  # an engine that sends no numbers
            return PackedTokens(prompt=None, completions=(), logprobs=(), is_exact=False)

    def find_doubt(self) -> str:
        """Return why the token ids of an answer that came to its end are doubted, "" when they are not, or are none."""
        choices = self.choices.values()
        if not any(choice.token_ids for choice in choices):
            return ""
        if not self._has_counted_tokens():
            return COUNT
        found = (find_difference(choice.said(), choice.tokens, self.expectations) for choice in choices)
        return next((doubt for doubt in found if doubt), "")

    def _is_exact(self, choices: list[ChoiceCapture]) -> bool:
        if not self.prompt_token_ids or len(self.choices) != self.n_choices:
            return False
        return self._has_counted_tokens() and all(choice.has_exact_tokens() for choice in choices)

    def _has_counted_tokens(self) -> bool:
        """Whether there are as many ids as log-probs and as many as the engine says."""
        choices = self.choices.values()
        n_sampled = sum(len(choice.token_ids) for choice in choices)
        is_paired = all(len(choice.token_ids) == len(choice.logprobs) for choice in choices)
        return is_paired and self.usage is not None and n_sampled == self.usage.get("completion_tokens")

    def _take_head(self, answer: Json, *, kind: str) -> None:
        if type(created := answer.get("created")) is int:
            self.created = created
        self.created = self.created or int(time.time())
        if fingerprint := answer.get("system_fingerprint"):
            self.fingerprint = _of_kind(str, fingerprint)
        if (usage := answer.get("usage")) is not None and _is_usage(usage):
            self.usage = usage
        if (prompt_ids := answer.get("prompt_token_ids")) is not None:
            self.prompt_token_ids = _of_kind(list, prompt_ids)
            if not self.wishes.token_ids:
                del answer["prompt_token_ids"]
        if not _ENGINE_ONLY.isdisjoint(answer):
            for name in _ENGINE_ONLY & answer.keys():
                if answer[name] is None:
                    del answer[name]
        answer["id"] = self.response_id
        answer["model"] = self.model
        answer["created"] = self.created
        answer.setdefault("object", kind)

    def _choice(self, choice: Json) -> ChoiceCapture:
        index = choice.get("index")
        if type(index) is int and (known := self.choices.get(index)) is not None:
            return known
        if index is None:
            index = choice["index"] = 0
        if not 0 <= _of_kind(int, index) < self.n_choices:
            raise LookupError(f"there is a choice {index}, where {self.n_choices} were asked for")
        return self.choices.setdefault(index, ChoiceCapture())

    def _take_tokens(self, capture: ChoiceCapture, choice: Json) -> bool:
        """Record ids, log-probs and the end; says whether the client wants to see any of it."""
        ids = choice.get("token_ids")
        if ids is not None:
            capture.token_ids += ids
            if not self.wishes.token_ids:
                del choice["token_ids"]
        logprobs = choice.get("logprobs")
        if logprobs is not None:
            for item in logprobs.get("content") or ():
                capture.logprobs.append(item["logprob"])
                capture.tokens.append(str(item.get("token", "")))
            if not self.wishes.logprobs:
                choice["logprobs"] = None
        finish_reason = choice.get("finish_reason")
        if finish_reason is not None:
            self._finish(capture, _of_kind(str, finish_reason))
            stop = choice.get("stop_reason")
            capture.stop_reason = stop if stop != "" and isinstance(stop, int | str) else None
        shown = (ids and self.wishes.token_ids) or (logprobs and self.wishes.logprobs)
        return finish_reason is not None or bool(shown)

    def _finish(self, capture: ChoiceCapture, reason: str) -> None:
        self._n_finished += capture.finish_reason is None
        capture.finish_reason = reason


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Little-endian: int32 ids, float32 log-probs (nats)."""

    prompt: bytes | None
    completions: tuple[bytes, ...]
    logprobs: tuple[bytes, ...]
    is_exact: bool


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS = (("prompt_tokens_details", "cached_tokens"), ("completion_tokens_details", "reasoning_tokens"))


def _is_usage(usage: Any) -> bool:
    """Whether it counts tokens in numbers; what does not is passed on, and not read."""
    if not isinstance(usage, dict):
        return False
    found = [usage.get(name) for name in _COUNTS]
    for part, name in _DETAILS:
        details = usage.get(part) or {}
        found.append(details.get(name) if isinstance(details, dict) else part)
    return all(count is None or (type(count) is int and count >= 0) for count in found) and _is_writable(usage)


def _is_writable(value: Any) -> bool:
    """Whether what was read can be written: orjson reads deeper than it writes."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _of_kind(kind: type[T], value: Any) -> T:
    """Return the value; raises TypeError for one of another kind: nothing of it may get into the record."""
    if type(value) is not kind:
        raise TypeError(f"there is {type(value).__name__}, where {kind.__name__} was expected")
    return value


def _take_said(capture: ChoiceCapture, said: Json) -> None:
    """Record texts. Of reasoning vLLM says `reasoning`; agents read `reasoning_content`."""
    if "reasoning" in said:
        thought = said.pop("reasoning")
        if thought is not None:
            said.setdefault("reasoning_content", thought)
    if content := said.get("content"):
        capture.content.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    if text := said.get("reasoning_content"):
        capture.reasoning.append(_of_kind(str, text))
    if text := said.get("refusal"):
        capture.refusal.append(_of_kind(str, text))


def _take_tool_call(capture: ChoiceCapture, part: Json, *, index: int | None = None) -> None:
    """Record a call, or a part of one, and give it our id. `index`: its place in an answer that came whole."""
    index = _of_kind(int, part.get("index") or 0) if index is None else index
    call = capture.tool_calls.get(index)
    if call is None:
        call = capture.tool_calls[index] = ToolCall()
        part.setdefault("type", "function")
        part["id"] = call.id
    elif "id" in part:
        part["id"] = call.id
    function = part.get("function") or {}
    if name := function.get("name"):
        call.name += name
        function.setdefault("arguments", "")  # vLLM leaves it out of the first delta, OpenAI never does
    if arguments := function.get("arguments"):
        if not isinstance(arguments, str):  # some servers send them parsed
            arguments = function["arguments"] = orjson.dumps(arguments).decode()
        call.arguments.append(arguments)
