"""The explicit marks by which a client says which session a call belongs to.

The first that exists wins: what somebody set on purpose (our header, the body's metadata, a key of one session), then
what clients send by themselves. Linking calls that carry no mark is the recorder's work,
and so are the other marks in the headers that are kept (`apps/trajectories/marks.py`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import re2

LONGEST_KEY = 400
LONGEST_HEADER = 2000

TRAJECTORY_HEADER = "x-trajectory-id"
_TRAJECTORY_ID = "traj_"
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
# A plain `in` takes a tenth of a ms for an agent's long prompt; RE2 looks for such words thirty times as fast.
_OPENCLAW, _RUNTIME_START = re2.compile(b"openclaw"), re2.compile(b"Runtime: agent=")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def kept_headers(headers: Mapping[str, str]) -> bytes:
    """Return, as a JSON object, the headers that help to find a session. Never a key."""
    return orjson.dumps({name: clean(headers[name], LONGEST_HEADER) for name in KEPT_HEADERS if name in headers})


def find_trajectory_id(headers: Mapping[str, str], body: dict[str, Any]) -> str:
    """Return the trajectory that the header or the body's metadata names, "" when neither does.

    A `metadata.trajectory_id` of another make is its client's own name for a session.
    """
    named = _read_metadata(body, "trajectory_id")
    return headers.get(TRAJECTORY_HEADER) or (named if named.startswith(_TRAJECTORY_ID) else "")


def find_session_key(
    headers: Mapping[str, str], body: dict[str, Any], raw_body: bytes, *, key_session: str = ""
) -> str:
    """Return the name of the call's session, "" when nobody gives one. `key_session`: what a one-session key says."""
    named = _from_user(headers, body) or key_session or _from_headers(headers) or _from_body(body, raw_body)
    return clean(named, LONGEST_KEY)


def _from_user(headers: Mapping[str, str], body: dict[str, Any]) -> str:
    """Return what somebody set on purpose: our header, or the body's metadata."""
    session = headers.get("x-session-id") or _read_metadata(body, "trajectory_id") or _read_metadata(body, "session_id")
    return _name_agent(session, headers) if session else ""


def _name_agent(session: str, headers: Mapping[str, str]) -> str:
    agent = headers.get("x-claude-code-agent-id")  # a sub-agent talks beside the main agent under the same name
    return f"{session}/{agent}" if agent else session


def _read_metadata(body: dict[str, Any], name: str) -> str:
    metadata = body.get("metadata")
    value = metadata.get(name) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


def _from_headers(headers: Mapping[str, str]) -> str:
    if session := headers.get("x-claude-code-session-id"):
        return _name_agent(session, headers)
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
        return _EPOCH.sub("", key) if _OPENCLAW.search(raw_body) else key
    return _from_user_id(_read_metadata(body, "user_id")) or _from_runtime_line(body, raw_body)


def _from_user_id(user_id: str) -> str:
    """Return the session in Claude Code's `metadata.user_id`, a JSON object as text."""
    if not user_id.startswith("{"):
        return ""
    try:
        inner = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return ""
    session = inner.get("session_id") if isinstance(inner, dict) else None
    return session if isinstance(session, str) else ""


def _from_runtime_line(body: dict[str, Any], raw_body: bytes) -> str:
    if not _RUNTIME_START.search(raw_body):  # spares everyone else the search
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
