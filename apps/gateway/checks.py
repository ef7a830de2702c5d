"""Checks of a request's fields that several dialects share, and errors that name the field. Knows no dialect."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from apps.gateway.errors import ApiError, bad_request

MAX_CHOICES = 64

Check = tuple[str, Callable[[Any], bool], str]
"""A field, whether its value will do, and what is expected otherwise. None is the same as absent."""

_PROMPT_LOGPROBS = "they can crash an engine that serves adapters"


def is_kind(*kinds: type) -> Callable[[Any], bool]:
    """Return a check for exactly these types: to Python a bool is an int, to clients it is not."""
    return lambda value: type(value) in kinds


COMMON: tuple[Check, ...] = (
    ("model", is_kind(str), "a string"),
    ("stream", is_kind(bool), "true or false"),
    ("stream_options", is_kind(dict), "an object"),
    ("n", lambda value: type(value) is int and 1 <= value <= MAX_CHOICES, f"an integer from 1 to {MAX_CHOICES}"),
    ("return_token_ids", is_kind(bool), "true or false"),
    ("seed", is_kind(int), "an integer"),
)


def is_token_ids(value: Any) -> bool:
    """Whether it is a list of at least one token id."""
    return isinstance(value, list) and set(map(type, value)) == {int} and min(value) >= 0  # there may be a million


def is_texts(value: Any) -> bool:
    """Whether it is a list of texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the client is told how many tokens were used: with a stream only if it asks."""
    return not body.get("stream") or bool((body.get("stream_options") or {}).get("include_usage"))


def check_fields(body: Mapping[str, Any], checks: Iterable[Check]) -> None:
    """Raise ApiError (400) for the first field whose value will not do."""
    for name, is_good, expected in checks:
        if body.get(name) is not None and not is_good(body[name]):
            raise wrong(name, f"must be {expected}")
    if not body.get("model"):
        raise wrong("model", "is required")
    if body.get("stream_options") and not body.get("stream"):
        raise wrong("stream_options", "is only allowed when `stream` is true")


def refuse_fields(body: Mapping[str, Any], advices: Mapping[str, str]) -> None:
    """Raise ApiError (400) where silence would give another answer than the one asked for."""
    for name, advice in advices.items():
        if body.get(name):
            raise bad_request(f"`{name}` is not supported: {advice}.", param=name, code="unsupported_parameter")
    if body.get("prompt_logprobs") is not None:  # 0 asks for them too; vLLM's CPU engine dies of it (decision 8)
        message = f"`prompt_logprobs` is not supported: {_PROMPT_LOGPROBS}."
        raise bad_request(message, param="prompt_logprobs", code="unsupported_parameter")


def dump_body(body: Mapping[str, Any]) -> bytes:
    """Return the body for an engine; raises ApiError (400) for one that is nested too deeply to be written."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from error


def wrong(name: str, what: str) -> ApiError:
    """Return the error that names a field."""
    return bad_request(f"Invalid request: `{name}` {what}.", param=name)
