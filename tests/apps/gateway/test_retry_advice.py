"""Whether clients are told to try again: they obey `x-should-retry`, and would repeat every 409 without it."""

import anthropic
import openai
import pytest

from apps.accounts.models import ApiKey
from apps.gateway.errors import ApiError, advise_retry
from apps.trajectories.models import TrajectoryState
from tests.apps.gateway.conftest import GatewayServer
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import FakeEngine


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        *((status, None, "false") for status in (400, 401, 403, 404, 405, 409, 413, 415, 422, 501)),
        (408, "request_timeout", "true"),
        (429, "rate_limit_exceeded", "true"),
        (429, "insufficient_quota", "false"),
        (503, "engine_unavailable", "true"),
        (503, "engines_busy", "true"),
        (503, "engine_misconfigured", "false"),
        (500, "internal_error", None),
        (502, "engine_broken", None),
    ],
)
def test_a_retry_is_advised_where_it_may_help(status: int, code: str | None, advice: str | None) -> None:
    assert advise_retry(ApiError("x", status=status, code=code)).get("x-should-retry") == advice


@pytest.fixture
def complete_trajectory(key: ApiKey) -> str:
    trajectory = TrajectoryFactory.create(agent=key.agent, state=TrajectoryState.COMPLETE)
    return str(trajectory.pk)


def test_the_openai_package_does_not_repeat_a_conflict(
    gateway: GatewayServer, secret: str, complete_trajectory: str
) -> None:
    base_url = f"{gateway.url}/t/{complete_trajectory}/v1"
    with (
        openai.OpenAI(base_url=base_url, api_key=secret, max_retries=2) as client,
        pytest.raises(openai.ConflictError) as caught,
    ):
        client.chat.completions.create(model="otter", messages=[{"role": "user", "content": "hi"}])

    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_the_anthropic_package_does_not_repeat_a_conflict(
    gateway: GatewayServer, secret: str, complete_trajectory: str
) -> None:
    base_url = f"{gateway.url}/t/{complete_trajectory}"
    with (
        anthropic.Anthropic(base_url=base_url, api_key=secret, max_retries=2) as client,
        pytest.raises(anthropic.ConflictError) as caught,
    ):
        client.messages.create(model="otter", max_tokens=9, messages=[{"role": "user", "content": "hi"}])

    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_an_engines_own_refusal_is_final_too(gateway: GatewayServer, secret: str, engine: FakeEngine) -> None:
    engine.script.failures = [409]
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=2) as client,
        pytest.raises(openai.ConflictError) as caught,
    ):
        client.chat.completions.create(model="otter", messages=[{"role": "user", "content": "hi"}])

    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
