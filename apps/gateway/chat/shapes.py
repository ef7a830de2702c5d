"""What a chat request may hold. Explicit tables; the engine itself checks what it alone understands.

Four kinds of fields: those that we read (checked here), those that go to the engine as they are, those that change
nothing (dropped), those that would change the meaning and are not supported (refused by name). There are no others.
"""

from types import NoneType
from typing import Any

from apps.gateway.capture import Wishes
from apps.gateway.chat.engine_form import make_engine_body
from apps.gateway.checks import COMMON, Check, check_fields, is_kind, refuse_fields, wants_usage, wrong
from apps.gateway.dialect import ModelRequest
from apps.gateway.errors import bad_request
from apps.gateway.known_fields import IGNORED, SAMPLING, TEMPLATE, refuse_unknown
from apps.gateway.known_fields import REFUSED as REFUSED_ANYWHERE
from apps.gateway.known_talks import KnownTalks
from apps.gateway.spelled_messages import SpelledReader

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

READ = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "messages",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)
# Field → what to do instead.
REFUSED = REFUSED_ANYWHERE | {
    "audio": "this platform's models do not speak",
    "echo": "an answer is what the model says; the prompt you have",
    "function_call": "use `tool_choice`",
    "functions": "use `tools`",
    "web_search_options": "this platform has no web search: give the model a tool of your own",
}
KNOWN = READ | SAMPLING | TEMPLATE | IGNORED | REFUSED.keys() | {"prompt_logprobs"}

_READER = SpelledReader(KNOWN)

_CHECKS: tuple[Check, ...] = (
    ("messages", lambda value: isinstance(value, list) and bool(value), "a list of at least one message"),
    ("logprobs", is_kind(bool), "true or false"),
    ("tools", is_kind(list), "a list"),
    *COMMON,
)
_CONTENT = (str, list, NoneType)
_CHOICES = ("auto", "none", "required")


def read_chat_request(raw: bytes, known: KnownTalks, *, scope: str) -> ModelRequest:
    """Return the request in these bytes; raises ApiError (400) that names the field at fault.

    `known`: what was read before, with names of `scope`. What is read now is known the next time.
    """
    reading = _READER.read(raw, known, scope=scope)
    body = reading.body
    refuse_unknown(body, KNOWN)
    refuse_fields(body, REFUSED)
    check_fields(body, _CHECKS)
    _refuse_unsupported(body)
    _check_messages(body.get("messages"), n_known=reading.n_known)
    _check_tools(body.get("tools") or [], body.get("tool_choice"))
    for talk in reading.talks:
        known.keep(talk, scope=scope)
    return ModelRequest(
        body=body,
        engine_body=make_engine_body(body),
        model=body["model"],
        is_streamed=bool(body.get("stream")),
        n_choices=body.get("n") or 1,
        wishes=Wishes(
            usage=wants_usage(body),
            logprobs=bool(body.get("logprobs")),
            token_ids=bool(body.get("return_token_ids")),
        ),
        spelled_messages=reading.spelled,
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise bad_request('`modalities` may only be ["text"].', param="modalities", code="unsupported_value")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise wrong("top_logprobs", "needs `logprobs` to be true")


def _check_messages(messages: Any, *, n_known: int) -> None:
    """`n_known`: of so many it is known already that nothing is wrong."""
    if messages is None:
        raise wrong("messages", "is required")
    for index, message in enumerate(messages[n_known:], n_known):
        if not isinstance(message, dict):
            raise wrong(f"messages[{index}]", "must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise wrong(f"messages[{index}].role", f"must be one of {', '.join(sorted(ROLES))}")
        if not isinstance(message.get("content"), _CONTENT):
            raise wrong(f"messages[{index}].content", "must be a string, a list of parts or null")
        if calls := message.get("tool_calls"):
            _check_calls(calls, where=f"messages[{index}].tool_calls")


def _check_calls(calls: Any, *, where: str) -> None:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise wrong(where, "must be a list of objects")
    for index, call in enumerate(calls):
        if (call.get("type") or "function") != "function":
            raise wrong(f"{where}[{index}].type", "must be `function`: this platform's models make no other calls")
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(f"{where}[{index}].function", "must be an object with a `name`")


def _check_tools(tools: list[Any], choice: Any) -> None:
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise wrong(f"tools[{index}]", "must be an object")
        if tool.get("type", "function") != "function":
            raise wrong(f"tools[{index}].type", "must be `function`: this platform's models call no other tools")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(f"tools[{index}].function", "must be an object with a `name`")
    if isinstance(choice, dict) and choice.get("type", "function") != "function":
        raise wrong("tool_choice.type", "must be `function`, which names one of the `tools`")
    if choice is not None and not isinstance(choice, dict) and choice not in _CHOICES:
        raise wrong("tool_choice", f"must be one of {', '.join(_CHOICES)}, or an object that names a function")
    if not tools and choice not in (None, "auto", "none"):
        raise wrong("tool_choice", "asks for a call, but there are no `tools`")
