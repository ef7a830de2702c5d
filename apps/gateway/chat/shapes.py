"""What a chat request may hold. Explicit tables; the engine itself checks what it alone understands.

Three kinds of fields: those that we read (checked here), those that change nothing (dropped), those that would change
the meaning and are not supported (refused by name). Every other field goes to the engine as it is.
"""

from collections.abc import Callable
from typing import Any

from apps.gateway.bodies import read_json
from apps.gateway.capture import Wishes
from apps.gateway.dialect import ModelRequest
from apps.gateway.errors import ApiError, bad_request

MAX_CHOICES = 64
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

# Accepted because clients send them; they steer other people's servers.
IGNORED = frozenset(
    {
        "client_metadata",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)

# Silence would give another answer than the one asked for. Field → what to do instead.
REFUSED = {
    "audio": "this platform's models do not speak",
    "function_call": "use `tool_choice`",
    "functions": "use `tools`",
    "use_beam_search": "the log-probs of a beam are not those of sampling",
    "web_search_options": "this platform has no web search: give the model a tool of your own",
}


def read_chat_request(raw: bytes) -> ModelRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault."""
    body = read_json(raw)
    for name, check, expected in _CHECKS:
        if body.get(name) is not None and not check(body[name]):
            raise _wrong(name, f"must be {expected}")
    _refuse_unsupported(body)
    _check_messages(body.get("messages"))
    if not body.get("model"):
        raise _wrong("model", "is required")
    return ModelRequest(
        body=body,
        engine_body={name: value for name, value in body.items() if name not in IGNORED},
        model=body["model"],
        is_streamed=bool(body.get("stream")),
        n_choices=body.get("n") or 1,
        wishes=_read_wishes(body),
    )


def _read_wishes(body: dict[str, Any]) -> Wishes:
    options = body.get("stream_options") or {}
    return Wishes(
        usage=not body.get("stream") or bool(options.get("include_usage")),
        logprobs=bool(body.get("logprobs")),
        token_ids=bool(body.get("return_token_ids")),
    )


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model", _is(str), "a string"),
    ("messages", lambda value: isinstance(value, list) and bool(value), "a list of at least one message"),
    ("stream", _is(bool), "true or false"),
    ("stream_options", _is(dict), "an object"),
    ("n", lambda value: type(value) is int and 1 <= value <= MAX_CHOICES, f"an integer from 1 to {MAX_CHOICES}"),
    ("logprobs", _is(bool), "true or false"),
    ("return_token_ids", _is(bool), "true or false"),
    ("tools", _is(list), "a list"),
    ("seed", _is(int), "an integer"),
)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for name, advice in REFUSED.items():
        if body.get(name):
            raise bad_request(f"`{name}` is not supported: {advice}.", param=name, code="unsupported_parameter")
    if body.get("prompt_logprobs") is not None:  # 0 asks for them too; vLLM's CPU engine dies of it (decision 8)
        advice = "they can crash an engine that serves adapters"
        raise bad_request(f"`prompt_logprobs` is not supported: {advice}.", param="prompt_logprobs")
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise bad_request('`modalities` may only be ["text"].', param="modalities", code="unsupported_value")
    if body.get("stream_options") and not body.get("stream"):
        raise _wrong("stream_options", "is only allowed when `stream` is true")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise _wrong("top_logprobs", "needs `logprobs` to be true")


def _check_messages(messages: Any) -> None:
    if messages is None:
        raise _wrong("messages", "is required")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong(f"messages[{index}]", "must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise _wrong(f"messages[{index}].role", f"must be one of {', '.join(sorted(ROLES))}")


def _wrong(name: str, what: str) -> ApiError:
    return bad_request(f"Invalid request: `{name}` {what}.", param=name)
