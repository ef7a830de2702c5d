"""The explicit marks by which a client says which session a call belongs to.

In the order of precedence below; the first that exists wins. Linking calls that carry no mark is the recorder's work,
and so are the other marks in the headers that are kept (`apps/trajectories/marks.py`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

LONGEST_KEY = 400
LONGEST_HEADER = 2000

TRAJECTORY_HEADER = "x-trajectory-id"
KEPT_HEADERS = (
    "x-session-id",
    "x-parent-session-id",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "thread-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-client-request-id",
    "x-codex-window-id",
    "x-codex-turn-metadata",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-opencode-session",
    "originator",
    "traceparent",
    "x-stainless-retry-count",
    "user-agent",
)
_EPOCH = re.compile(r":\d+$")  # OpenClaw counts compactions behind its session id
_RUNTIME = re.compile(r"^Runtime: agent=.*?\bsessionId=([^\s|]+)", re.MULTILINE)  # OpenClaw's last resort
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def kept_headers(headers: Mapping[str, str]) -> bytes:
    """Return, as a JSON object, the headers that help to find a session. Never a key."""
    return orjson.dumps({name: clean(headers[name], LONGEST_HEADER) for name in KEPT_HEADERS if name in headers})


def find_session_key(headers: Mapping[str, str], body: dict[str, Any], raw_body: bytes) -> str:
    """Return the client's own name for the session, "" when it gives none."""
    return clean(_from_headers(headers) or _from_body(body, raw_body), LONGEST_KEY)


def _from_headers(headers: Mapping[str, str]) -> str:
    if session := headers.get("x-session-id") or headers.get("x-claude-code-session-id"):
        agent = headers.get("x-claude-code-agent-id")  # a sub-agent talks beside the main agent under the same name
        return f"{session}/{agent}" if agent else session
    for name in ("thread-id", "session-id"):
        if headers.get(name):
            return headers[name]
    for name in ("x-session-affinity", "session_id"):
        if headers.get(name):
            return _EPOCH.sub("", headers[name])
    return ""


def _from_body(body: dict[str, Any], raw_body: bytes) -> str:
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and key:
        # Of other clients' cache keys nothing is known: `customer:17` is not `customer`.
        return _EPOCH.sub("", key) if b"openclaw" in raw_body else key
    return _from_metadata(body.get("metadata")) or _from_runtime_line(body, raw_body)


def _from_metadata(metadata: Any) -> str:
    if not isinstance(metadata, dict):
        return ""
    user_id = metadata.get("user_id")
    if isinstance(user_id, str) and user_id.startswith("{"):
        try:
            inner = orjson.loads(user_id)
        except orjson.JSONDecodeError:
            inner = None
        if isinstance(inner, dict) and isinstance(inner.get("session_id"), str) and inner["session_id"]:
            return str(inner["session_id"])
    session = metadata.get("session_id")
    return session if isinstance(session, str) else ""


def _from_runtime_line(body: dict[str, Any], raw_body: bytes) -> str:
    if b"Runtime: agent=" not in raw_body:  # spares everyone else the search
        return ""
    for content in _contents(body):
        for text in _texts(content):
            if found := _RUNTIME.search(text):
                return found.group(1)
    return ""


def _contents(body: dict[str, Any]) -> Iterator[Any]:
    """Yield what was said in any dialect, the system's words first: the line stands there or in the first message."""
    yield body.get("system")
    yield body.get("instructions")
    for name in ("messages", "input"):
        items = body.get(name)
        for item in items if isinstance(items, list) else []:
            yield item.get("content") if isinstance(item, dict) else None


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def clean(text: str, longest: int) -> str:
    """Return text that any column takes: no control characters, no half surrogates, not too long."""
    return _UNPRINTABLE.sub("", text)[:longest]
