"""What the gateway will not do, said in OpenAI's shape, with nothing left in the pool that was not a call."""

import contextlib
import json
from typing import Any

import httpx
import pytest
from pytest_django.fixtures import Settings

from apps.accounts.models import Agent, ApiKey, Project
from apps.accounts.services import disable_key
from apps.gateway.call import read_refusal
from apps.trajectories.models import Exchange, ExchangeStatus, TrajectoryState
from tests.apps.gateway.conftest import GatewayServer, chat, only_exchange, wait_until
from tests.factories.accounts import AgentFactory
from tests.factories.registry import AliasFactory, VersionFactory
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"


def assert_error(response: httpx.Response, *, status: int, code: str | None, param: str | None = None) -> str:
    """It is OpenAI's error shape; returns the message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer claw-no"}, {"x-api-key": "x"}, {"Authorization": "?"}]
)
def test_it_refuses_unknown_keys(gateway: GatewayServer, headers: dict[str, str]) -> None:
    response = httpx.post(gateway.url + PATH, json=chat(), headers=headers)

    message = assert_error(response, status=401, code="invalid_api_key")
    is_given = headers.get("x-api-key") or "claw-" in headers.get("Authorization", "")
    assert message.startswith("Incorrect API key provided" if is_given else "You didn't provide an API key")
    assert not Exchange.objects.exists()


def test_an_engines_list_of_python_errors_is_put_plainly() -> None:
    listed = "[{'type': 'int_parsing', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be a valid integer'}]"
    body = json.dumps({"error": {"message": listed, "param": "body.max_tokens"}}).encode()
    refusal = read_refusal(400, body)
    assert (refusal.param, refusal.message) == (
        "max_tokens",
        "Invalid request: `max_tokens`: Input should be a valid integer.",
    )


def test_it_takes_the_key_from_either_header(gateway: GatewayServer, secret: str) -> None:
    assert httpx.post(gateway.url + PATH, json=chat(), headers={"x-api-key": secret}).status_code == 200


def test_a_key_that_is_switched_off_stops_working_at_once(http: httpx.Client, key: ApiKey) -> None:
    assert http.post(PATH, json=chat()).status_code == 200
    disable_key(key=key, actor="test")

    wait_until(lambda: http.post(PATH, json=chat()).status_code == 401, timeout_s=2)


@pytest.mark.parametrize("model", ["gpt-5", "otter@v7", "otter@candidate", "otter@", "elsewhere"])
def test_it_refuses_unknown_models(http: httpx.Client, model: str) -> None:
    if model == "otter@":  # the same as without a suffix
        assert http.post(PATH, json=chat(model=model)).status_code == 200
        return
    message = assert_error(http.post(PATH, json=chat(model=model)), status=404, code="model_not_found", param="model")

    assert "otter" in message


def test_it_refuses_another_teams_model(http: httpx.Client, other_project: Project) -> None:
    version = VersionFactory.create(policy__project=other_project, policy__slug="theirs")
    AliasFactory.create(version=version)

    assert_error(http.post(PATH, json=chat(model="theirs")), status=404, code="model_not_found", param="model")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"model": NaN}', b"\xff\xfe", b'{"a": "\\ud800'])
def test_it_refuses_what_is_no_json_object(http: httpx.Client, body: bytes) -> None:
    assert_error(http.post(PATH, content=body), status=400, code="invalid_json")


@pytest.mark.parametrize("depth", [300, 1000, 5000])
def test_it_refuses_what_is_nested_too_deeply(http: httpx.Client, depth: int) -> None:
    tool = (
        b'{"type": "function", "function": {"name": "f", "parameters": '
        + b'{"a":' * depth
        + b"1"
        + b"}" * depth
        + b"}}"
    )
    body = b'{"model": "default", "messages": [{"role": "user", "content": "hi"}], "tools": [' + tool + b"]}"
    assert_error(http.post(PATH, content=body), status=400, code="invalid_json")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "boss"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"]}]}, "messages[0].role"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 10**9}, "n"),
        ({"seed": "x"}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_it_names_the_field_at_fault(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = http.post(PATH, json=chat(**fields))

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert param.partition("[")[0] in response.json()["error"]["message"]
    assert engine.calls == []


def test_null_is_the_same_as_absent(http: httpx.Client) -> None:
    fields = dict.fromkeys(["stream", "stream_options", "n", "seed", "tools", "logprobs", "functions", "modalities"])

    assert http.post(PATH, json=chat(**fields)).status_code == 200


def test_an_unknown_field_is_refused_by_name(http: httpx.Client, engine: FakeEngine) -> None:
    response = http.post(PATH, json=chat(brand_new=False))

    assert_error(response, status=400, code="unknown_parameter", param="brand_new")
    assert engine.calls == []
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_over_long_prompt_gets_the_engines_own_error(http: httpx.Client, *, is_streamed: bool) -> None:
    response = http.post(PATH, json=chat(stream=is_streamed, messages=[{"role": "user", "content": "x" * 30_000}]))

    message = assert_error(response, status=400, code="context_length_exceeded", param="messages")
    assert message.startswith("This model's maximum context length is 2048 tokens.")
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    assert exchange.error == message
    assert json.loads(bytes(exchange.response or b"")) == response.json()
    assert not exchange.is_exact


def test_it_refuses_bodies_over_the_limit(http: httpx.Client, settings: Settings) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"max_body_mb": 1})
    announced = http.post(PATH, content=b"x" * (2 * 1024 * 1024))
    parts = (b"x" * 65536 for _ in range(64))

    assert_error(announced, status=413, code="request_too_large")
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it may close the door while we are still talking
        assert_error(http.post(PATH, content=parts), status=413, code="request_too_large")
    assert http.post(PATH, json=chat()).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "zstd"])
def test_it_refuses_compressed_bodies(http: httpx.Client, encoding: str) -> None:
    response = http.post(PATH, content=b"x", headers={"content-encoding": encoding})

    assert_error(response, status=415, code="unsupported_encoding")
    assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_a_body_that_says_it_is_not_compressed_is_read(http: httpx.Client, encoding: str) -> None:
    assert http.post(PATH, json=chat(), headers={"content-encoding": encoding}).status_code == 200


def test_unknown_paths_are_json_404(http: httpx.Client) -> None:
    for path in ["/v1/audio", "/v1/", "/v1", "/v1/chat", "/t/traj_1/v1/nothing"]:
        assert_error(http.post(path, json={}), status=404, code="unknown_url")


def test_wrong_methods_are_told_the_right_one(http: httpx.Client) -> None:
    get = http.get(PATH)
    delete = http.delete("/v1/models")

    assert_error(get, status=405, code="method_not_allowed")
    assert get.headers["allow"] == "POST"
    assert_error(delete, status=405, code="method_not_allowed")
    assert set(delete.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_fault_of_ours_is_told_in_the_callers_shape(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def break_down(*_args: object, **_fields: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("apps.gateway.endpoint.find_version", break_down)
    openai = http.post(PATH, json=chat())
    anthropic = http.post("/v1/messages", json={**chat(), "max_tokens": 5})

    assert "secret" not in assert_error(openai, status=500, code="internal_error") + anthropic.text
    assert openai.headers["x-request-id"].startswith("exch_")
    assert (anthropic.status_code, anthropic.json()["type"]) == (500, "error")
    assert anthropic.json()["request_id"] == anthropic.headers["request-id"]


def test_a_trajectory_is_named_by_address_or_header(http: httpx.Client, agent: Agent) -> None:
    one, two = TrajectoryFactory.create_batch(2, agent=agent)

    assert http.post(f"/t/{one.id}{PATH}", json=chat()).status_code == 200
    assert http.post(PATH, json=chat(), headers={"x-trajectory-id": two.id}).status_code == 200
    assert [exchange.trajectory_id for exchange in Exchange.objects.order_by("id")] == [one.id, two.id]


def test_another_agent_of_the_project_may_file_under_it(http: httpx.Client, project: Project) -> None:
    trajectory = TrajectoryFactory.create(agent=AgentFactory.create(project=project))

    assert http.post(f"/t/{trajectory.id}{PATH}", json=chat()).status_code == 200


def test_it_refuses_another_teams_trajectory(http: httpx.Client, engine: FakeEngine, other_project: Project) -> None:
    theirs = TrajectoryFactory.create(agent=AgentFactory.create(project=other_project))

    for name in [theirs.id, "traj_00000000000000000000000000", "x", "../v1"]:
        response = http.post(PATH, json=chat(), headers={"x-trajectory-id": name})
        assert_error(response, status=404, code="trajectory_not_found", param="trajectory_id")
    assert engine.calls == []
    assert not Exchange.objects.exists()


def test_it_refuses_a_completed_trajectory(http: httpx.Client, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    assert http.post(f"/t/{trajectory.id}{PATH}", json=chat()).status_code == 200
    trajectory.state = TrajectoryState.COMPLETE
    trajectory.save()

    assert_error(http.post(f"/t/{trajectory.id}{PATH}", json=chat()), status=409, code="trajectory_complete")
