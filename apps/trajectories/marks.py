"""The marks that clients leave on a call beside their session's name: counts, parents, traces, kinds. Pure.

The session's name itself is found by the gateway, which needs it earlier. Which client sends what: docs/agents/.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COUNTED = re.compile(r":(\d{1,6})$")
_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_KIND = re.compile(r'"request_kind"\s*:\s*"(\w+)"')
_CLIENTS_OWN = ("x-session-affinity", "x-parent-session-id", "x-opencode-session")  # with these, so is x-session-id
_MARKS_IN_BODIES = (b"prompt_cache_key", b"previous_response_id")
_TURN = "turn"  # Codex's word for it
_PARENTS = ("x-codex-parent-thread-id", "x-parent-session-id")


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What a client says of a call."""

    is_session_named_by_client: bool
    """The client put its session's name there by itself, so its side calls bear it too."""
    epoch: int | None
    """How often the client had compacted the session by then, if it counts."""
    trace_id: str
    parent_session: str
    """The name of the session that started this one, "" if it is not said."""
    is_subagent: bool
    kind: str
    """What Codex says that the call is for, "" for other clients."""
    retry_count: int
    previous_response_id: str

    @property
    def is_turn(self) -> bool:
        """The client says that this is the conversation itself, whatever it did to the history before."""
        return self.kind == _TURN


def read_marks(headers: Mapping[str, str], body: Mapping[str, Any], *, session_key: str) -> Marks:
    """Return the marks of a call. `headers` have lower-case names; `body` is the request in the client's dialect."""
    previous = body.get("previous_response_id")
    trace = _TRACEPARENT.match(headers.get("traceparent", ""))
    parent = _find_parent_session(headers, session_key=session_key)
    return Marks(
        is_session_named_by_client=_is_named_by_client(headers, session_key=session_key),
        epoch=_read_epoch(headers, body, session_key=session_key),
        trace_id=trace.group(1) if trace else "",
        parent_session=parent,
        is_subagent=bool(parent or headers.get("x-claude-code-agent-id") or headers.get("x-openai-subagent")),
        kind=headers.get("x-openai-subagent") or _read_request_kind(headers.get("x-codex-turn-metadata", "")),
        retry_count=_read_count(headers.get("x-stainless-retry-count", "")),
        previous_response_id=previous if isinstance(previous, str) and previous.isprintable() else "",
    )


def _is_named_by_client(headers: Mapping[str, str], *, session_key: str) -> bool:
    own_header = headers.get("x-session-id")
    return not own_header or session_key != own_header or any(name in headers for name in _CLIENTS_OWN)


def _read_epoch(headers: Mapping[str, str], body: Mapping[str, Any], *, session_key: str) -> int | None:
    """OpenClaw counts behind its session's name, Codex behind its thread's."""
    names = [headers.get(name) for name in ("x-codex-window-id", "x-session-affinity", "session_id")]
    for name in [*names, body.get("prompt_cache_key")]:
        counted = _COUNTED.search(name) if isinstance(name, str) else None
        if counted and name == f"{session_key}{counted.group()}":
            return int(counted.group(1))
    return None


def _find_parent_session(headers: Mapping[str, str], *, session_key: str) -> str:
    agent = headers.get("x-claude-code-agent-id")
    if agent and session_key.endswith(f"/{agent}"):
        return session_key.removesuffix(f"/{agent}")
    named = next((headers[name] for name in _PARENTS if headers.get(name)), "")
    return named if named != session_key else ""


def _read_request_kind(metadata: str) -> str:
    # Not parsed: the gateway cuts long headers.
    found = _REQUEST_KIND.search(metadata)
    return found.group(1) if found else ""


def _read_count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def read_raw_body(request: bytes) -> Mapping[str, Any]:
    """Return the request as the client sent it, {} when it holds no mark (most bodies are not worth the parsing)."""
    if not any(name in request for name in _MARKS_IN_BODIES):
        return {}
    try:
        body = json.loads(request)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
