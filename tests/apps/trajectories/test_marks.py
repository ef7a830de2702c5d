"""The marks that clients leave beside their session's name."""

import json
from typing import Any

import pytest

from apps.trajectories.marks import Marks, read_marks, read_raw_body

TRACE = "a0d38af4d5fdf8bdff9f962e6cc30fd7"


def read(headers: dict[str, str] | None = None, *, session_key: str = "", **body: Any) -> Marks:
    return read_marks(headers or {}, body, session_key=session_key)


@pytest.mark.parametrize(
    ("headers", "body", "epoch"),
    [
        ({"x-session-affinity": "s:0"}, {}, 0),
        ({"x-session-affinity": "s:12", "session_id": "s:12"}, {}, 12),
        ({"x-codex-window-id": "s:3"}, {}, 3),
        ({}, {"prompt_cache_key": "s:1"}, 1),
        ({"session_id": "s"}, {"prompt_cache_key": "s"}, None),
        ({"session_id": "other:4"}, {}, None),
        ({}, {"prompt_cache_key": 5}, None),
        ({}, {"prompt_cache_key": "s:12345678901"}, None),
        ({}, {}, None),
    ],
)
def test_compactions_are_counted_behind_the_sessions_name(
    headers: dict[str, str], body: dict[str, Any], epoch: int | None
) -> None:
    assert read(headers, session_key="s", **body).epoch == epoch


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (f"00-{TRACE}-e100c37a58fc86ec-01", TRACE),
        (f"00-{'0' * 32}-e100c37a58fc86ec-01", ""),
        (f"00-{TRACE}-short-01", ""),
        ("", ""),
        ("rubbish", ""),
    ],
)
def test_a_trace_is_read_if_it_is_one(traceparent: str, trace_id: str) -> None:
    assert read({"traceparent": traceparent}).trace_id == trace_id


@pytest.mark.parametrize(
    ("headers", "session_key", "parent", "is_subagent"),
    [
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s/a", "s", True),
        ({"x-session-id": "m", "x-claude-code-agent-id": "a"}, "m/a", "m", True),
        ({"x-claude-code-agent-id": "a"}, "", "", True),
        ({"x-session-id": "b", "x-parent-session-id": "a"}, "b", "a", True),
        ({"thread-id": "t", "x-codex-parent-thread-id": "p", "x-openai-subagent": "collab_spawn"}, "t", "p", True),
        ({"thread-id": "t", "x-codex-parent-thread-id": "t"}, "t", "", False),
        ({"thread-id": "t"}, "t", "", False),
    ],
)
def test_a_sub_agent_names_its_parent(
    headers: dict[str, str], session_key: str, parent: str, is_subagent: bool
) -> None:
    marks = read(headers, session_key=session_key)
    assert (marks.parent_session, marks.is_subagent) == (parent, is_subagent)


@pytest.mark.parametrize(
    ("headers", "session_key", "is_clients_own"),
    [
        ({"x-session-id": "mine"}, "mine", False),
        ({"x-session-id": "ses_1", "x-session-affinity": "ses_1"}, "ses_1", True),
        ({"thread-id": "t"}, "t", True),
        ({}, "from the body", True),
    ],
)
def test_a_name_is_the_clients_own_or_its_users(
    headers: dict[str, str], session_key: str, is_clients_own: bool
) -> None:
    assert read(headers, session_key=session_key).is_session_named_by_client == is_clients_own


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"x-codex-turn-metadata": '{"turn_id":"t","request_kind":"compaction"}'}, "compaction"),
        ({"x-codex-turn-metadata": '{"request_kind": "turn", "long": "cut off he'}, "turn"),
        ({"x-openai-subagent": "memory_consolidation"}, "memory_consolidation"),
        ({}, ""),
    ],
)
def test_codex_says_what_a_call_is_for(headers: dict[str, str], kind: str) -> None:
    assert read(headers).kind == kind


@pytest.mark.parametrize(("text", "count"), [("2", 2), ("0", 0), ("", 0), ("-1", 0), ("٣", 0), ("9" * 30, 0)])
def test_retries_are_counted(text: str, count: int) -> None:
    assert read({"x-stainless-retry-count": text}).retry_count == count


@pytest.mark.parametrize(("given", "kept"), [("resp_1", "resp_1"), ("nul\x00", ""), (7, ""), (None, "")])
def test_an_earlier_answer_may_be_named(given: Any, kept: str) -> None:
    assert read(previous_response_id=given).previous_response_id == kept


@pytest.mark.parametrize(
    ("request_body", "body"),
    [
        (json.dumps({"prompt_cache_key": "k"}).encode(), {"prompt_cache_key": "k"}),
        (b'{"messages": []}', {}),
        (b'{"prompt_cache_key": ', {}),
        (b'["prompt_cache_key"]', {}),
        (b'{"prompt_cache_key":' + b"[" * 100_000, {}),
    ],
)
def test_only_bodies_that_may_hold_a_mark_are_read(request_body: bytes, body: dict[str, Any]) -> None:
    assert read_raw_body(request_body) == body
