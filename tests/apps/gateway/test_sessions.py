"""The explicit marks of sessions, as the clients really send them."""

import json
from typing import Any

import orjson
import pytest

from apps.gateway.sessions import LONGEST_HEADER, find_session_key, find_trajectory_id, kept_headers

RUNTIME = (
    "[Tue 2026-12-01 01:30 UTC] hello\n\n"
    "Runtime: agent=main | session=agent:main:one | sessionId=sess-one | host=laptop | model=gw"
)


def find(headers: dict[str, str] | None = None, **body: Any) -> str:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return find_session_key(headers or {}, body, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"x-session-id": "order:17"}, "order:17"),
        ({"x-session-id": "mine", "x-claude-code-session-id": "theirs"}, "mine"),
        ({"x-session-id": "mine", "x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "mine/a"),
        ({"x-session-id": "ses_b", "x-session-affinity": "ses_b", "x-parent-session-id": "ses_a"}, "ses_b"),
        ({"x-claude-code-session-id": "s"}, "s"),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s/a"),
        ({"thread-id": "t", "session-id": "u"}, "t"),
        ({"session-id": "u", "x-codex-window-id": "u:2"}, "u"),
        ({"session_id": "sid:1", "x-session-affinity": "sid:1", "x-client-request-id": "sid:1"}, "sid"),
        ({"x-session-affinity": "sid:0"}, "sid"),
        ({"x-session-affinity": "sid"}, "sid"),
        ({"x-client-request-id": "only-this"}, ""),
    ],
)
def test_headers_come_first(headers: dict[str, str], key: str) -> None:
    assert find(headers) == key


def test_openclaws_cache_key_counts_compactions() -> None:
    system = {"role": "system", "content": "<!-- openclaw:attempt:STABLE --> You are"}

    assert find(prompt_cache_key="sess-one:1", messages=[system]) == "sess-one"
    assert find(prompt_cache_key="sess-one", messages=[system]) == "sess-one"
    assert find(prompt_cache_key="customer:17") == "customer:17"


def test_metadata_may_name_the_session() -> None:
    assert find(metadata={"session_id": "m"}) == "m"
    assert find(metadata={"user_id": json.dumps({"device_id": "d", "session_id": "u"})}) == "u"
    assert find(metadata={"user_id": json.dumps({"session_id": "u"}), "session_id": "m"}) == "m"
    assert find(metadata={"trajectory_id": "episode-5", "session_id": "m"}) == "episode-5"
    assert find(metadata={"user_id": "{no json"}) == ""
    assert find(metadata={"user_id": '{"session_id": 5}'}) == ""
    assert find(metadata="x") == ""
    assert find(metadata={"session_id": 5}) == ""


def test_what_is_set_on_purpose_goes_before_what_clients_send_by_themselves() -> None:
    claude = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
    metadata = {"session_id": "m"}

    assert find({"x-session-id": "mine", **claude}, metadata=metadata) == "mine/a"
    assert find(claude, metadata=metadata) == "m/a"
    assert find({"session_id": "sid:1"}, metadata=metadata, prompt_cache_key="k") == "m"


def test_a_key_of_one_session_goes_before_the_clients_marks_only() -> None:
    def find_with_key(headers: dict[str, str], **body: Any) -> str:
        return find_session_key(headers, body, json.dumps(body).encode(), key_session="key_1")

    assert find_with_key({}) == "key_1"
    assert find_with_key({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}) == "key_1"
    assert find_with_key({}, prompt_cache_key="k") == "key_1"
    assert find_with_key({"x-session-id": "mine"}) == "mine"
    assert find_with_key({}, metadata={"session_id": "m"}) == "m"


@pytest.mark.parametrize(
    ("headers", "metadata", "found"),
    [
        ({}, {}, ""),
        ({}, None, ""),
        ({}, {"trajectory_id": "traj_b"}, "traj_b"),
        ({"x-trajectory-id": "traj_a"}, {"trajectory_id": "traj_b"}, "traj_a"),
        ({}, {"trajectory_id": "episode-5"}, ""),
        ({}, {"trajectory_id": 5}, ""),
    ],
)
def test_the_body_may_name_the_trajectory(headers: dict[str, str], metadata: Any, found: str) -> None:
    assert find_trajectory_id(headers, {"metadata": metadata}) == found


def test_openclaws_runtime_line_is_the_last_resort() -> None:
    text = {"role": "user", "content": RUNTIME}
    parts = {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": RUNTIME}]}

    assert find(messages=[{"role": "system", "content": None}, text]) == "sess-one"
    assert find(messages=[parts]) == "sess-one"
    assert find(messages=[text], metadata={"session_id": "m"}) == "m"
    assert find(messages=[{"role": "user", "content": "what is sessionId=x?"}]) == ""
    assert find(messages="Runtime: agent=main | sessionId=x") == ""
    assert find(messages=["Runtime: agent=main | sessionId=x"]) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"system": [{"type": "text", "text": "You are"}, {"type": "text", "text": RUNTIME}]},
        {"system": RUNTIME, "messages": [{"role": "user", "content": RUNTIME.replace("sess-one", "quoted")}]},
        {"instructions": RUNTIME, "input": "hi"},
        {"input": [{"role": "developer", "content": [{"type": "input_text", "text": RUNTIME}]}, "odd", {"a": 1}]},
    ],
)
def test_the_runtime_line_is_found_in_every_dialect(body: dict[str, Any]) -> None:
    assert find(**body) == "sess-one"


def test_a_key_is_cut_and_cleaned() -> None:
    assert find({"x-session-id": "a\x00b\n"}) == "ab"
    assert len(find({"x-session-id": "x" * 5000})) == 400
    assert find(prompt_cache_key="x\x00") == "x"


def test_kept_headers_hold_no_secret() -> None:
    headers = {
        "authorization": "Bearer claw-secret",
        "x-api-key": "claw-secret",
        "cookie": "sessionid=1",
        "user-agent": "OpenAI/JS 7.15.0",
        "traceparent": "00-a-b-01",
        "x-codex-turn-metadata": "y" * 10_000,
    }
    kept = orjson.loads(kept_headers(headers))

    assert set(kept) == {"user-agent", "traceparent", "x-codex-turn-metadata"}
    assert len(kept["x-codex-turn-metadata"]) == LONGEST_HEADER
