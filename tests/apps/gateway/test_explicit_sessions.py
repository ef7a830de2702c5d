"""Sessions that somebody names on purpose: by the body's metadata in every dialect that has it, or by the key."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from apps.accounts.models import Agent, ApiKey, Project
from apps.accounts.services import create_key
from apps.core.ids import new_id
from apps.trajectories.models import Exchange, Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.conftest import GatewayServer, chat, only_exchange
from tests.apps.gateway.messages_client import ask
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
BODIES: dict[str, Json] = {
    "/v1/chat/completions": chat(),
    "/v1/messages": ask(),
    "/v1/responses": {"model": "otter", "input": "hello"},
    "/v1/completions": {"model": "otter", "prompt": "hello"},
}
in_every_dialect = pytest.mark.parametrize("path", list(BODIES))


def body_of(path: str, **metadata: Any) -> Json:
    return {**BODIES[path], "metadata": metadata}


@in_every_dialect
def test_metadata_names_a_trajectory(http: httpx.Client, key: ApiKey, path: str) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)

    response = http.post(path, json=body_of(path, trajectory_id=trajectory.pk))

    assert response.status_code == 200, response.text
    assert only_exchange().trajectory_id == trajectory.pk


@in_every_dialect
@pytest.mark.parametrize("name", ["session_id", "trajectory_id"])
def test_metadata_names_a_session(http: httpx.Client, path: str, name: str) -> None:
    for _ in range(2):
        assert http.post(path, json=body_of(path, **{name: "episode-5"})).status_code == 200

    kept = set(Exchange.objects.values_list("trajectory_id", "session_key"))
    assert kept == {("", "episode-5")}


@in_every_dialect
def test_it_refuses_trajectories_that_take_no_calls(
    http: httpx.Client, key: ApiKey, other_project: Project, engine: FakeEngine, path: str
) -> None:
    over = TrajectoryFactory.create(agent=key.agent, state=TrajectoryState.COMPLETE)
    theirs = TrajectoryFactory.create(agent__project=other_project)

    answers = [
        http.post(path, json=body_of(path, trajectory_id=trajectory_id)).status_code
        for trajectory_id in (over.pk, theirs.pk, new_id("traj"), "traj_x")
    ]

    assert answers == [409, 404, 404, 404]
    assert engine.calls == []


@pytest.mark.parametrize("metadata", [{"trajectory_id": 5}, {"session_id": ["x"]}, "x", None])
def test_metadata_of_another_shape_names_nothing(http: httpx.Client, metadata: Any) -> None:
    assert http.post("/v1/chat/completions", json=chat(metadata=metadata)).status_code == 200

    assert (only_exchange().trajectory_id, only_exchange().session_key) == ("", "")


@pytest.fixture
def ask_with_key(gateway: GatewayServer, agent: Agent) -> Callable[..., httpx.Response]:
    """Calls with a key of one session."""
    _, secret = create_key(agent=agent, actor="test", is_one_session=True)

    def call(path: str, **headers: str) -> httpx.Response:
        sent = {"Authorization": f"Bearer {secret}", **headers}
        return httpx.post(gateway.url + path, json=BODIES[path], headers=sent, timeout=30)

    return call


def test_all_calls_with_a_key_of_one_session_are_one_trajectory(ask_with_key: Callable[..., httpx.Response]) -> None:
    marks = {"x-claude-code-session-id": "s"}
    for path in BODIES:
        assert ask_with_key(path).status_code == 200
        assert ask_with_key(path, **marks).status_code == 200

    assert Exchange.objects.values("session_key").distinct().count() == 1
    fold_pending()
    trajectory = Trajectory.objects.get()
    assert trajectory.n_steps == 2 * len(BODIES)


def test_another_name_goes_before_the_keys(ask_with_key: Callable[..., httpx.Response]) -> None:
    ask_with_key("/v1/chat/completions", **{"x-session-id": "mine"})

    assert only_exchange().session_key == "mine"
