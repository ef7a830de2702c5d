"""What the gateway will not do, said in Anthropic's shape and in the words that its clients look for."""

import json
import re
from typing import Any

import httpx
import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.models import ApiKey, Project
from apps.gateway import bodies
from apps.gateway.errors import ApiError
from apps.gateway.messages.errors import render_anthropic
from apps.trajectories.models import Exchange, ExchangeStatus, TrajectoryState
from tests.apps.gateway.conftest import GatewayServer, only_exchange
from tests.apps.gateway.messages_client import COUNT_PATH, PATH, ask
from tests.factories.registry import AliasFactory, VersionFactory
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import FakeEngine


def assert_error(response: httpx.Response, *, status: int, kind: str) -> str:
    """It is Anthropic's error shape; returns the message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]
    return str(body["error"]["message"])


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer claw-no"}, {"x-api-key": "x"}])
def test_it_refuses_unknown_keys(gateway: GatewayServer, path: str, headers: dict[str, str]) -> None:
    response = httpx.post(gateway.url + path, json=ask(), headers=headers)

    assert_error(response, status=401, kind="authentication_error")
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
def test_it_refuses_another_teams_model(http: httpx.Client, other_project: Project, path: str) -> None:
    version = VersionFactory.create(policy__project=other_project, policy__slug="theirs")
    AliasFactory.create(version=version)

    message = assert_error(http.post(path, json=ask(model="theirs")), status=404, kind="not_found_error")

    assert "otter" in message


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": NaN}'])
def test_it_refuses_what_is_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    assert_error(http.post(path, content=body), status=400, kind="invalid_request_error")


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
@pytest.mark.parametrize("fields", [{"messages": None}, {"brand_new": 1}, {"tools": [{"name": "x"}]}])
def test_it_names_the_field_at_fault(http: httpx.Client, engine: FakeEngine, path: str, fields: Any) -> None:
    message = assert_error(http.post(path, json=ask(**fields)), status=400, kind="invalid_request_error")

    assert message.startswith(next(iter(fields)))
    assert (engine.calls, engine.counted) == ([], [])


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, 400),
        ({"thinking": {"type": "enabled", "budget_tokens": {"a": 1}}}, 400),
        ({"context_management": {"edits": 5}}, 200),
        ({"context_management": {"edits": [{"type": {"a": 1}}, 5]}}, 200),
    ],
)
def test_what_is_only_told_breaks_nothing(http: httpx.Client, fields: Any, status: int) -> None:
    assert http.post(PATH, json=ask(**fields)).status_code == status


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
def test_it_refuses_what_is_nested_too_deeply(http: httpx.Client, path: str) -> None:
    tool = {"name": "x", "input_schema": "DEEP"}
    body = json.dumps(ask(tools=[tool])).replace('"DEEP"', '{"a":' * 300 + "1" + "}" * 300)

    assert_error(http.post(path, content=body), status=400, kind="invalid_request_error")


def test_it_refuses_bodies_over_the_limit(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.read_body, "__kwdefaults__", {"limit": 1024})

    assert_error(http.post(PATH, json=ask(system="x" * 2000)), status=413, kind="request_too_large")


def test_it_refuses_complete_trajectories(http: httpx.Client, key: ApiKey) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent, state=TrajectoryState.COMPLETE, completed_at=timezone.now())

    response = http.post(f"/t/{trajectory.id}/messages", json=ask())

    assert "complete" in assert_error(response, status=409, kind="invalid_request_error")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_over_long_prompt_is_told_in_the_words_that_make_agents_compact(
    http: httpx.Client, *, is_streamed: bool
) -> None:
    response = http.post(PATH, json=ask(stream=is_streamed, system="x" * 30_000))

    message = assert_error(response, status=400, kind="invalid_request_error")
    found = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum", message)
    assert found is not None
    assert found.groups() == ("2049", "2048")
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    assert json.loads(bytes(exchange.response or b"")) == response.json()


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (
            "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens.",
            "prompt is too long: 3000 tokens > 2048 maximum",
        ),
        (
            "This model's maximum context length is 2048 tokens. However, your prompt contains 90000 characters.",
            "prompt is too long: 2049 tokens > 2048 maximum",
        ),
        ("The maximum context length is short.", "prompt is too long: The maximum context length is short."),
    ],
)
def test_engines_have_several_words_for_over_long(words: str, start: str) -> None:
    error = ApiError(words, code="context_length_exceeded")

    assert render_anthropic(error)["error"]["message"].startswith(start)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (415, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_every_status_has_its_type(status: int, kind: str) -> None:
    assert render_anthropic(ApiError("no", status=status))["error"]["type"] == kind


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
def test_without_an_engine_it_says_when_to_come_back(
    http: httpx.Client, engine: FakeEngine, settings: Settings, path: str
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.3})
    engine.script.failures = [503] * 20

    response = http.post(path, json=ask())

    assert_error(response, status=503, kind="overloaded_error")
    assert int(response.headers["retry-after"]) > 0
