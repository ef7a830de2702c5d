"""What somebody else's server is asked: only what OpenAI's API knows, which is all that such servers have in common.

Engines of ours understand more. Of that, what asks for nothing is left out, what the client can do without is left out
and told, and what would change the answer is refused by name. Knows no provider's own extensions.
"""

from typing import Any

from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError, bad_request

_BOTH = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
    }
)
CHAT_FIELDS = _BOTH | {
    "max_completion_tokens",
    "messages",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
    "tool_choice",
    "tools",
    "top_logprobs",
}
COMPLETION_FIELDS = _BOTH | {"prompt"}
EMBEDDING_FIELDS = frozenset({"dimensions", "encoding_format", "input", "model"})
_BY_SUBJECT = {"messages": CHAT_FIELDS, "prompt": COMPLETION_FIELDS, "input": EMBEDDING_FIELDS}
STREAM_OPTIONS = frozenset({"include_obfuscation", "include_usage"})
MESSAGE_FIELDS = frozenset({"content", "name", "refusal", "role", "tool_call_id", "tool_calls"})
_PART_FIELDS = frozenset({"file", "image_url", "input_audio", "refusal", "text", "type"})
_TOOL_FIELDS = frozenset({"function", "type"})

# Values that ask for nothing, where that is not simply null, zero, false or empty.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (0, 1),
    "include_reasoning": (True,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "top_k": (-1, 0),
}
# The answer is the same without them.
_SPARED = frozenset({"cache_salt", "priority", "return_token_ids", "return_tokens_as_token_ids"})
# Fields of ours for what another dialect says in its own words → those words.
_WORDS = {
    "add_generation_prompt": "messages",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
}


def make_provider_body(body: Json, *, asked: Json) -> tuple[Json, Json]:
    """Return what a provider is sent and what was left out of it, name → why.

    `asked` is the client's own request. Raises ApiError (400) for what would change the answer.
    """
    known = next(fields for name, fields in _BY_SUBJECT.items() if name in body)
    dropped: Json = {}
    sent: Json = {}
    for name, value in body.items():
        if name in known:
            sent[name] = value
        elif not _asks_for_nothing(name, value):
            _leave_out(name, asked, dropped)
    if "prompt" in body and asked.get("logprobs") is None:
        sent.pop("logprobs", None)  # the sampled tokens' are asked for on every call to an engine of ours
    if "stream_options" in sent:
        sent["stream_options"] = _keep(sent["stream_options"], STREAM_OPTIONS)
    if "messages" in sent:
        sent["messages"] = [_make_message(message, dropped) for message in sent["messages"]]
    if "tools" in sent:
        sent["tools"] = [_keep(tool, _TOOL_FIELDS) for tool in sent["tools"]]
    return sent, dropped


def refuse_tokens() -> ApiError:
    """Return the error of a call in tokens to a model that has none for us."""
    return bad_request(
        "This model is a provider's, which tells no token ids and log-probs: ask it by /v1/chat/completions.",
        param="model",
        code="unsupported_model",
    )


def _asks_for_nothing(name: str, value: Any) -> bool:
    return value in _NEUTRAL[name] if name in _NEUTRAL else not value


def _leave_out(name: str, asked: Json, dropped: Json) -> None:
    """Note that a field is left out if the answer allows it; raises ApiError (400) if it does not."""
    if name in _SPARED:
        dropped[name] = "not known to providers"
        return
    if name == "chat_template_kwargs" and name not in asked:  # a switch for thinking; providers have reasoning_effort
        dropped[_WORDS[name]] = "not known to providers"
        return
    told = name if name in asked else _WORDS.get(name, name)
    fault = "is not known to providers' models" if told == name else "may not end with the answer's beginning"
    raise bad_request(
        f"`{told}` {fault}: they are asked by OpenAI's API. Do without it, or ask a model of this platform.",
        param=told,
        code="unsupported_parameter",
    )


def _make_message(message: Json, dropped: Json) -> Json:
    for name in message.keys() - MESSAGE_FIELDS:
        if message[name]:
            dropped[f"messages.{name}"] = "not known to providers"
    kept: Json = _keep(message, MESSAGE_FIELDS)
    if isinstance(kept.get("content"), list):
        kept["content"] = [_keep(part, _PART_FIELDS) for part in kept["content"]]
    return kept


def _keep(value: Any, names: frozenset[str]) -> Any:
    return {name: inner for name, inner in value.items() if name in names} if isinstance(value, dict) else value
