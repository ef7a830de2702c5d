"""Chat messages made comparable: two requests tell the same story although a client re-wrote how it is spelled.

For comparison only: what is stored and trained on is never normalised. Knows chat shapes, no database and no sessions.
The quirks come from captured requests of real clients (tests/data/captures).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

Message = Any  # what stands in a request's `messages`: a dict, if the client is sane


class KnownMessage(dict[str, Any]):
    """A message that may be met again, with what was found out about it. Nobody changes it."""

    __slots__ = ("digest", "is_to_subagent", "role", "spelled", "text")

    def __init__(self, message: Mapping[str, Any], spelled: str) -> None:
        super().__init__(message)
        self.spelled = spelled
        self.role = _find_role(message)
        self.text = _find_text(message)
        self.digest = _find_digest(message)
        self.is_to_subagent = _is_to_subagent(self.role, self.text)


TITLE_LENGTH = 200
# OpenClaw ends every request with this block and leaves it out of the next one.
_TRANSIENT = re.compile(r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>", re.DOTALL)
# Claude Code's first line of system text: it counts words of the conversation and changes with them.
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")
# What OpenClaw writes around the user's own words; they stay in its history, so comparing leaves them in.
_STAMP = re.compile(r"^\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2} [^\]\s]{1,12}\] ")
_RUNTIME = re.compile(r"\n\nRuntime: agent=[^\n]*sessionId=[^\n]*\s*$")
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)  # Claude Code's, before the user's words
_SUBAGENT = "[Subagent Context]"  # what OpenClaw writes before a sub-agent's task
_NOT_ALPHANUMERIC = re.compile(r"[^0-9A-Za-z]")
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")  # what Postgres text refuses
_encode = json.JSONEncoder(separators=(",", ":")).encode


def hash_text(*parts: str) -> str:
    """Return 32 hex digits over the parts; any text is taken, lone surrogates included."""
    data = bytearray()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        data += len(encoded).to_bytes(8, "little")
        data += encoded
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_digests(digests: Iterable[str]) -> str:
    """Return what `hash_text` does, for parts that are digests of its own."""
    data = "".join([_DIGEST_HEAD + digest for digest in digests])
    return hashlib.blake2b(data.encode(), digest_size=16).hexdigest()


_DIGEST_HEAD = (32).to_bytes(8, "little").decode()
_HISTORY = hash_text("history")


def hash_bytes(data: bytes) -> str:
    """Return 32 hex digits over the bytes, which may be long: processors have instructions for SHA-256."""
    return shorten_hash(hashlib.sha256(data))


def shorten_hash(hashed: "hashlib._Hash") -> str:
    """Return the 32 hex digits of a hash that more may have been added to."""
    return hashed.hexdigest()[:32]


def dump_json(value: Any) -> str:
    """Return one canonical spelling, ASCII only, so that equal text means equal value."""
    return _encode(value)


def spell(message: Message) -> str:
    """Return the message as `dump_json` spells it."""
    return message.spelled if isinstance(message, KnownMessage) else dump_json(message)


def role_of(message: Message) -> str:
    """Return the role; `developer` is how some clients spell `system`."""
    return message.role if isinstance(message, KnownMessage) else _find_role(message)


def _find_role(message: Message) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return "system" if role == "developer" else str(role or "")


def text_of(message: Message) -> str:
    """Return the message's text without what the client takes out again in its next request."""
    return message.text if isinstance(message, KnownMessage) else _find_text(message)


def _find_text(message: Message) -> str:
    return "\n".join(text for kind, text in _content_parts(message) if kind == "text")


def is_to_subagent(message: Message) -> bool:
    """Whether the user's words tell that they are for a sub-agent of OpenClaw's."""
    if isinstance(message, KnownMessage):
        return message.is_to_subagent
    return _is_to_subagent(_find_role(message), _find_text(message))


def _is_to_subagent(role: str, text: str) -> bool:
    return role == "user" and _SUBAGENT in text and unwrap_text(text).startswith(_SUBAGENT)


def spoken_text(message: Message) -> str:
    """Return all the words of an answer as one text, unchanged: spans count its characters (Unicode code points)."""
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def call_ids_of(message: Message) -> list[str]:
    """Return the ids of the message's tool calls as the strictest client sends them back: letters and digits only."""
    return [_plain_id(call.get("id")) for call in _tool_calls(message) if call.get("id")]


def digest_message(message: Message) -> str | None:
    """Return a digest of what the message says, None when it says nothing that lasts.

    Equal: content "" / null / absent, a string and one text part, with or without cache_control, tool-call ids with and
    without punctuation, arguments however spaced, with or without reasoning, names and refusals.
    """
    return message.digest if isinstance(message, KnownMessage) else _find_digest(message)


def look_at(message: Message) -> tuple[str | None, str, Message]:
    """Return the message's digest (`digest_message`), its role and itself."""
    if type(message) is KnownMessage:
        return message.digest, message.role, message
    return digest_message(message), role_of(message), message


def _find_digest(message: Message) -> str | None:
    if not isinstance(message, dict):
        return hash_text("odd", dump_json(message))
    parts = _content_parts(message)
    role = role_of(message)
    if role == "user" and not parts and message.get("content"):
        return None
    calls = [dump_json(_comparable_call(call)) for call in _tool_calls(message)]
    return hash_text(role, _plain_id(message.get("tool_call_id")), dump_json(parts), *calls)


def says_the_same(echo: Sequence[Message], answer: Message) -> bool:
    """Whether a request's next message, if there is one, is an answer as its client spells it (`digest_message`)."""
    digest = digest_message(echo[0]) if echo else None
    return digest is not None and digest == digest_message(answer)


def digest_answer_text(message: Message) -> str:
    """Return a digest of an assistant message's text, "" when it has none."""
    text = text_of(message).strip()
    return hash_text(text) if text else ""


def chain_digests(digests: Sequence[str]) -> list[str]:
    """Return for each prefix of the history one digest: entry k stands for the first k messages."""
    chained = [_HISTORY]
    for digest in digests:
        chained.append(_chain(chained[-1], digest))
    return chained


@lru_cache(maxsize=20_000)
def _chain(before: str, digest: str) -> str:
    """Return the next link. Of a conversation's next request nearly all links are those of the last one."""
    return hash_text(before, digest)


def has_passing_words(message: Message) -> bool:
    """Say whether the message holds words that the client takes out again, or changes, in its next request."""
    content = message.get("content") if isinstance(message, dict) else None
    changing = _BILLING if is_system(message) else _TRANSIENT
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return any(isinstance(text, str) and changing.search(text) for text in texts)


def system_text(messages: Iterable[Message]) -> str:
    """Return the text of the system messages that the request begins with (Claude Code has more of them later)."""
    return "\n".join(text_of(message) for message in takewhile(is_system, messages))


def is_system(message: Message) -> bool:
    """Say whether the message is a system message."""
    return role_of(message) == "system"


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the last user message that says something lasting."""
    texts = (text_of(message) for message in reversed(messages) if role_of(message) == "user")
    return next((text for text in texts if text.strip()), "")


def make_title(messages: Sequence[Message]) -> str:
    """Return what the user asked first, on one line, cut, in characters that a text column takes.

    `messages` are those of the first call: what stands before its last user message may be worked examples.
    """
    text = unwrap_text(last_user_text(messages))
    return clean_text(" ".join((_REMINDER.sub("", text).strip() or text).split()))[:TITLE_LENGTH]


def unwrap_text(text: str) -> str:
    """Return the user's own words without the time and the runtime line that OpenClaw writes around them."""
    return _RUNTIME.sub("", _STAMP.sub("", text))


def clean_text(text: str) -> str:
    """Return the text without what Postgres refuses in a text column."""
    return _NOT_STORABLE.sub("", text)


def _content_parts(message: Message) -> list[tuple[str, str]]:
    """Return ("text", its text) and ("other", canonical JSON) for each part that says something lasting."""
    content = message.get("content") if isinstance(message, dict) else None
    if content is None:
        return []
    parts = content if isinstance(content, list) else [content]
    changing = _BILLING if is_system(message) else _TRANSIENT
    found = (_comparable_part(part, changing=changing) for part in parts)
    return [(kind, text) for kind, text in found if text]


def _comparable_part(part: Any, *, changing: re.Pattern[str]) -> tuple[str, str]:
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(text, str):
        return "text", changing.sub("", text)
    if isinstance(part, dict):
        part = {key: value for key, value in part.items() if key != "cache_control"}
    return "other", json.dumps(part, separators=(",", ":"), sort_keys=True)


def _tool_calls(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _comparable_call(call: dict[str, Any]) -> list[Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return [_plain_id(call.get("id")), call]
    return [_plain_id(call.get("id")), function.get("name"), _comparable_arguments(function.get("arguments"))]


def _comparable_arguments(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return arguments
    return json.dumps(arguments, sort_keys=True)


def _plain_id(value: Any) -> str:
    return _NOT_ALPHANUMERIC.sub("", value) if isinstance(value, str) else ""
