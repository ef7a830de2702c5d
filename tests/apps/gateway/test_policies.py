"""Limits and capture policies at the door: what clients are told in each dialect, and what the pool has afterwards."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from apps.accounts.models import Agent, ApiKey, CaptureMode, PassedCalls
from apps.accounts.services import set_capture, set_limits
from apps.gateway import passed_calls
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import chat, only_exchange, read_events, wait_until
from tests.conftest import client_with_secret
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
CHAT, MESSAGES, RESPONSES, COMPLETIONS = (
    f"/v1/{n}" for n in ("chat/completions", "messages", "responses", "completions")
)
EMAIL = "ada@example.org"
N_TOKENS = 16  # of one small call to the fake engine: 11 of the prompt, 4 of the answer, its end


def body_for(path: str, text: str = "hello", **fields: Any) -> Json:
    shapes: dict[str, Json] = {
        CHAT: chat(messages=[{"role": "user", "content": text}]),
        MESSAGES: {"model": "otter", "max_tokens": 99, "messages": [{"role": "user", "content": text}]},
        RESPONSES: {"model": "otter", "input": text},
        COMPLETIONS: {"model": "otter", "prompt": text},
    }
    return {**shapes[path], **fields}


@pytest.fixture
def start(request: pytest.FixtureRequest, world: None) -> Callable[[], httpx.Client]:
    """Starts the gateway once the test has set its policies."""
    return lambda: request.getfixturevalue("http")


class TestLimits:
    @pytest.mark.parametrize("path", [CHAT, RESPONSES, COMPLETIONS])
    def test_a_refusal_says_when_to_come_again(
        self, start: Callable[[], httpx.Client], key: ApiKey, engine: FakeEngine, path: str
    ) -> None:
        set_limits(key, limits={"requests_per_minute": 1}, actor="x")
        http = start()
        first, second = (http.post(path, json=body_for(path)) for _ in range(2))

        assert first.status_code == 200, first.text
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        assert first.headers["x-ratelimit-reset-requests"] in {"1m0s", "59.999s"}
        assert second.status_code == 429
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        assert second.json()["error"]["type"] == "requests"
        assert 55 <= int(second.headers["retry-after"]) <= 60
        assert second.headers["x-request-id"].startswith("exch_")
        assert len(engine.calls) == 1
        assert only_exchange()

    def test_messages_says_it_as_anthropic_does(
        self, start: Callable[[], httpx.Client], key: ApiKey, engine: FakeEngine
    ) -> None:
        set_limits(key, limits={"requests_per_minute": 1, "tokens_per_minute": 10_000}, actor="x")
        http = start()
        first, second = (http.post(MESSAGES, json=body_for(MESSAGES)) for _ in range(2))

        assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert 9000 < int(first.headers["anthropic-ratelimit-tokens-remaining"]) < 10_000
        assert first.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
        assert second.status_code == 429
        assert second.json()["type"] == "error"
        assert second.json()["error"]["type"] == "rate_limit_error"
        assert int(second.headers["retry-after"]) >= 55

    @pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/embeddings"])
    def test_what_is_not_kept_is_limited_too(
        self, start: Callable[[], httpx.Client], key: ApiKey, engine: FakeEngine, path: str
    ) -> None:
        engine.script.n_dimensions = 2
        set_limits(key, limits={"requests_per_minute": 1, "tokens_per_minute": 1000}, actor="x")
        http = start()
        body = {"model": "otter", **({"input": "hi"} if "embed" in path else {"messages": chat()["messages"]})}
        first, second = (http.post(path, json=body) for _ in range(2))

        assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        assert second.status_code == 429
        assert second.json()["error"]["type"] == ("requests" if "embed" in path else "rate_limit_error")
        assert int(second.headers["retry-after"]) >= 55
        assert len(engine.counted) == 1

    def test_a_stream_has_the_headers_too(self, start: Callable[[], httpx.Client], key: ApiKey) -> None:
        set_limits(key.agent.project.team, limits={"requests_per_minute": 10}, actor="x")
        assert start().post(CHAT, json=chat(stream=True)).headers["x-ratelimit-remaining-requests"] == "9"

    def test_without_limits_there_are_none(self, http: httpx.Client) -> None:
        headers = http.post(CHAT, json=chat()).headers
        assert not [name for name in headers if "ratelimit" in name]

    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_tokens_are_charged_as_they_were_used(
        self, start: Callable[[], httpx.Client], key: ApiKey, *, is_streamed: bool
    ) -> None:
        set_limits(key, limits={"tokens_per_minute": 1000, "tokens_per_day": 10**6}, actor="x")
        http = start()
        request = chat(stream=is_streamed, max_tokens=1)
        estimate = 1000 - int(http.post(CHAT, json=request).headers["x-ratelimit-remaining-tokens"])
        second = int(http.post(CHAT, json=request).headers["x-ratelimit-remaining-tokens"])

        assert second == pytest.approx(1000 - N_TOKENS - estimate, abs=3)  # a second gives 17 back

    def test_a_call_that_fails_is_not_charged(
        self, start: Callable[[], httpx.Client], key: ApiKey, engine: FakeEngine
    ) -> None:
        set_limits(key, limits={"tokens_per_day": 40}, actor="x")
        http = start()
        too_long = chat(messages=[{"role": "user", "content": "x" * 30_000}])
        assert http.post(CHAT, json=too_long).status_code == 400
        assert http.post(CHAT, json=chat()).status_code == 200

    def test_a_days_budget_is_a_quota(self, start: Callable[[], httpx.Client], key: ApiKey) -> None:
        set_limits(key.agent.project, limits={"tokens_per_day": N_TOKENS}, actor="x")
        http = start()
        assert http.post(CHAT, json=chat()).status_code == 200
        wait_until(lambda: http.post(CHAT, json=chat()).status_code == 429)
        error = http.post(CHAT, json=chat()).json()["error"]

        assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")

    def test_calls_in_flight_are_counted_and_free_when_their_client_leaves(
        self, start: Callable[[], httpx.Client], key: ApiKey, engine: FakeEngine
    ) -> None:
        set_limits(key, limits={"max_in_flight": 1}, actor="x")
        http = start()
        engine.script.pieces = ["x"] * 1000
        engine.script.pause_s = 0.05
        with http.stream("POST", CHAT, json=chat(stream=True)) as response:
            next(response.iter_lines())
            refused = http.post(CHAT, json=chat())
            assert refused.status_code == 429
            assert "1 call in flight" in refused.json()["error"]["message"]
        engine.script.pieces, engine.script.pause_s = ["ok"], 0
        wait_until(lambda: http.post(CHAT, json=chat()).status_code == 200, timeout_s=3)

    def test_a_limit_holds_at_once_and_ends_at_once(self, http: httpx.Client, key: ApiKey) -> None:
        set_limits(key, limits={"requests_per_minute": 1}, actor="x")
        wait_until(lambda: http.post(CHAT, json=chat()).status_code == 429, timeout_s=2)
        set_limits(key, limits={"requests_per_minute": None}, actor="x")
        wait_until(lambda: http.post(CHAT, json=chat()).status_code == 200, timeout_s=2)

    def test_a_bad_request_is_not_charged(self, start: Callable[[], httpx.Client], key: ApiKey) -> None:
        set_limits(key, limits={"requests_per_minute": 1}, actor="x")
        http = start()
        assert http.post(CHAT, json={}).status_code == 400
        assert http.post(CHAT, json=chat(model="nobody")).status_code == 404
        assert http.post(CHAT, json=chat()).status_code == 200


class TestCapture:
    @pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_off_passes_through_and_keeps_a_number_only(
        self,
        start: Callable[[], httpx.Client],
        agent: Agent,
        secret: str,
        monkeypatch: pytest.MonkeyPatch,
        path: str,
        *,
        is_streamed: bool,
    ) -> None:
        monkeypatch.setattr(passed_calls, "WRITE_EVERY_S", 0.1)
        set_capture(agent=agent, actor="x", mode=CaptureMode.OFF)
        http = start()
        response = http.post(path, json=body_for(path, stream=is_streamed))

        assert response.status_code == 200
        wait_until(PassedCalls.objects.exists)
        assert PassedCalls.objects.get().n_calls == 1
        assert not Exchange.objects.exists()

    def test_a_label_for_it_is_told_why_there_is_nothing(
        self, start: Callable[[], httpx.Client], agent: Agent, secret: str
    ) -> None:
        set_capture(agent=agent, actor="x", mode=CaptureMode.OFF)
        response_id = start().post(CHAT, json=chat()).json()["id"]
        answer = client_with_secret(secret).post(f"/api/v1/responses/{response_id}/labels", {"value": 1})

        assert answer.status_code == 404
        assert "was not captured" in answer.json()["detail"]

    @pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_redaction_is_of_the_pool_and_not_of_the_answer(
        self, start: Callable[[], httpx.Client], agent: Agent, engine: FakeEngine, path: str, *, is_streamed: bool
    ) -> None:
        set_capture(agent=agent, actor="x", mode=CaptureMode.REDACT)
        engine.script.pieces = ["Write to ada@", "exam", "ple.org", " now"]
        response = start().post(path, json=body_for(path, f"I am {EMAIL}", stream=is_streamed))

        assert "ple.org" in response.text
        assert EMAIL in str(engine.calls[0].body)
        exchange = only_exchange()
        kept = [
            bytes(part or b"")
            for part in (exchange.request, exchange.response, exchange.chat_request, exchange.chat_response)
        ]
        assert not [part for part in kept if b"example.org" in part]
        assert b"[redacted:email]" in kept[0]
        assert b"[redacted:email]" in kept[1]
        assert exchange.prompt_token_ids is None
        assert exchange.completion_token_ids == []
        assert (exchange.is_exact, exchange.token_check) == (False, "redacted: email")

    def test_a_call_without_a_match_stays_exact(self, start: Callable[[], httpx.Client], agent: Agent) -> None:
        set_capture(agent=agent, actor="x", mode=CaptureMode.REDACT)
        assert start().post(CHAT, json=chat()).status_code == 200
        assert only_exchange().is_exact

    def test_two_streams_of_one_conversation_stay_one_session(
        self, start: Callable[[], httpx.Client], agent: Agent, engine: FakeEngine
    ) -> None:
        set_capture(agent=agent, actor="x", mode=CaptureMode.REDACT)
        engine.script.pieces = [f"Hello {EMAIL}"]
        http = start()
        messages: list[Json] = [{"role": "user", "content": f"I am {EMAIL}"}]
        for _ in range(2):
            events = read_events(http.post(CHAT, json=chat(messages=messages, stream=True)))
            text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]

        kept = [json.loads(bytes(row.request))["messages"] for row in Exchange.objects.order_by("id")]
        answers = [json.loads(bytes(row.response or b"")) for row in Exchange.objects.order_by("id")]
        assert kept[1][1]["content"] == answers[0]["choices"][0]["message"]["content"] == "Hello [redacted:email]"


class TestTraining:
    @pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
    def test_a_request_may_stay_out_of_it(self, http: httpx.Client, path: str) -> None:
        assert http.post(path, json=body_for(path), headers={"x-claw-train": "off"}).status_code == 200
        assert not only_exchange().is_training_allowed

    def test_else_it_may_be_trained_on(self, http: httpx.Client) -> None:
        http.post(CHAT, json=chat())
        assert only_exchange().is_training_allowed

    @pytest.mark.parametrize("path", [CHAT, MESSAGES])
    def test_a_header_that_says_neither_is_refused(self, http: httpx.Client, engine: FakeEngine, path: str) -> None:
        response = http.post(path, json=body_for(path), headers={"x-claw-train": "perhaps"})
        assert response.status_code == 400
        assert "x-claw-train" in response.json()["error"]["message"]
        assert engine.calls == []
