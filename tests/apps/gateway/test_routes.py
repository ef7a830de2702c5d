"""Which weights a name means, which engine has them, and how soon a change is heard."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest
from django.db import DatabaseError
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts import services
from apps.accounts.models import Agent, ApiKey, Scope
from apps.accounts.services import create_key
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.gateway import routes
from apps.gateway.routes import Snapshot, load_snapshot
from apps.registry.models import (
    Alias,
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    EngineState,
    Version,
    VersionState,
)
from apps.registry.services import take_off_candidate
from tests.apps.gateway.conftest import GatewayServer, chat, wait_until
from tests.factories.accounts import ApiKeyFactory
from tests.factories.registry import AliasFactory, EngineFactory, ProviderFactory, TeacherFactory, VersionFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"


def load_in_thread() -> Snapshot:
    """Load it where the gateway does, in a thread whose connection it may close."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(load_snapshot).result()


@pytest.fixture
def adapter(version: Version, engine_row: Engine) -> Version:
    """Version 1, an adapter, loaded on the engine but not live."""
    adapter = VersionFactory.create(
        policy=version.policy, number=1, adapter_path="/adapters/1", engine_name="otter-v1-abc"
    )
    Deployment.objects.create(version=adapter, engine=engine_row, state=DeploymentState.LOADED)
    return adapter


def test_every_name_of_a_policy_is_known(adapter: Version, key: ApiKey) -> None:
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE)
    project_id = key.agent.project_id
    snapshot = load_in_thread()

    found = {
        name: version.label if (version := snapshot.find_version(project_id, name)) else None
        for name in [
            "otter",
            "default",
            "otter@live",
            "otter@candidate",
            "otter@v0",
            "otter@v1",
            "otter@previous",
            "cat",
        ]
    }
    assert found == {
        "otter": "otter@v0",
        "default": "otter@v0",
        "otter@live": "otter@v0",
        "otter@candidate": "otter@v1",
        "otter@v0": "otter@v0",
        "otter@v1": "otter@v1",
        "otter@previous": None,
        "cat": None,
    }


def test_versions_that_are_not_ready_have_no_name(version: Version, key: ApiKey) -> None:
    VersionFactory.create(policy=version.policy, number=1, adapter_path="/a/1", state=VersionState.PUBLISHED)

    assert load_in_thread().find_version(key.agent.project_id, "otter@v1") is None


def test_engines_are_those_that_have_the_weights_the_healthy_first(
    adapter: Version, engine_row: Engine, key: ApiKey
) -> None:
    down = EngineFactory.create(state=EngineState.DOWN)
    EngineFactory.create(base_model="another")
    EngineFactory.create(is_enabled=False)
    Deployment.objects.create(version=adapter, engine=down, state=DeploymentState.UNLOADED)
    snapshot = load_in_thread()
    base = snapshot.find_version(key.agent.project_id, "otter")
    lora = snapshot.find_version(key.agent.project_id, "otter@v1")
    assert base is not None
    assert lora is not None

    assert [engine.id for engine in snapshot.find_engines(base)] == [engine_row.id, down.id]
    assert [engine.id for engine in snapshot.find_engines(lora)] == [engine_row.id]


def test_calls_to_the_bare_name_are_split_and_a_session_keeps_its_version(adapter: Version, key: ApiKey) -> None:
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE, live_share=10)
    project_id, snapshot = key.agent.project_id, load_in_thread()

    def ask(model: str, session: str) -> str:
        version = snapshot.find_version(project_id, model, session=session)
        assert version is not None
        return version.label

    sessions = [f"session-{number}" for number in range(10_000)]
    answers = {session: ask("otter", session) for session in sessions}
    counts = Counter(answers.values())
    assert abs(counts["otter@v1"] - 1000) < 120  # four standard deviations of 30
    assert counts.total() == counts["otter@v0"] + counts["otter@v1"]
    assert all(ask("default", session) == version for session, version in answers.items())
    assert {ask("otter@live", session) for session in sessions[:100]} == {"otter@v0"}
    assert {ask("otter@candidate", session) for session in sessions[:100]} == {"otter@v1"}
    without_session = Counter(ask("otter", "") for _ in range(2000))
    assert abs(without_session["otter@v1"] - 200) < 68  # five of 13.4: this one is left to chance


def test_a_candidate_that_no_engine_has_takes_nothing_from_live(adapter: Version, key: ApiKey) -> None:
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE, live_share=99)
    Deployment.objects.update(state=DeploymentState.UNLOADED)
    snapshot = load_in_thread()
    found = {snapshot.find_version(key.agent.project_id, "otter", session=str(number)) for number in range(50)}
    assert {version.label for version in found if version} == {"otter@v0"}


def test_a_candidate_taken_off_leaves_all_calls_to_live(adapter: Version, key: ApiKey) -> None:
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE, live_share=99)
    take_off_candidate(policy=adapter.policy, actor="owner")
    project_id, snapshot = key.agent.project_id, load_in_thread()
    found = {snapshot.find_version(project_id, "otter", session=str(number)) for number in range(50)}
    assert {version.label for version in found if version} == {"otter@v0"}
    assert snapshot.find_version(project_id, "otter@candidate") is None


def test_teachers_are_names_of_their_own_project_on_a_provider(
    version: Version, key: ApiKey, engine_row: Engine
) -> None:
    project_id = key.agent.project_id
    provider = ProviderFactory.create(project=key.agent.project, max_in_flight=2)
    teacher = TeacherFactory.create(engine=provider, name="gpt/large:1")
    TeacherFactory.create(name="not-ours")
    snapshot = load_in_thread()

    route = snapshot.find_version(project_id, "gpt/large:1")
    assert route is not None
    assert (route.id, route.engine_name, route.is_text_only) == (teacher.id, "gpt-large", True)
    (engine,) = snapshot.find_engines(route)
    assert (engine.id, engine.credential, engine.max_in_flight) == (provider.id, "sk-of-a-teacher", 2)
    assert engine.url("/v1/chat/completions") == f"{provider.base_url}/chat/completions"
    assert snapshot.find_version(project_id, "not-ours") is None
    assert set(snapshot.names(project_id)) == {"gpt/large:1", "otter", "default"}
    base = snapshot.find_version(project_id, "otter")
    assert base is not None
    assert [engine.id for engine in snapshot.find_engines(base)] == [engine_row.id]


def test_the_policys_own_name_is_not_a_teachers(version: Version, key: ApiKey) -> None:
    TeacherFactory.create(engine=ProviderFactory.create(project=key.agent.project), name="otter")
    found = load_in_thread().find_version(key.agent.project_id, "otter")
    assert found is not None
    assert not found.is_text_only


def test_a_provider_whose_credential_cannot_be_opened_says_so(
    transactional_db: None, key: ApiKey, settings: Settings
) -> None:
    ProviderFactory.create(project=key.agent.project)
    settings.SECRET_KEY = "another key than before"
    (engine,) = load_in_thread().engines
    assert "CLAW_SECRET_KEY" in engine.fault
    assert engine.credential == ""


def test_keys_end_with_their_time(transactional_db: None, key: ApiKey, agent: Agent) -> None:
    ApiKeyFactory.create(agent=agent, secret="claw-old", expires_at=timezone.now() - timedelta(seconds=1))
    ApiKeyFactory.create(agent=agent, secret="claw-soon", expires_at=timezone.now() + timedelta(milliseconds=200))
    snapshot = load_in_thread()

    assert snapshot.find_key("claw-old") is None
    assert snapshot.find_key("claw-soon") is not None
    wait_until(lambda: snapshot.find_key("claw-soon") is None)


def test_a_switched_alias_is_heard_at_once(http: httpx.Client, adapter: Version, engine: FakeEngine) -> None:
    first = http.post(PATH, json=chat())
    Alias.objects.filter(policy=adapter.policy).update(version=adapter)
    notify_processes(ROUTES_CHANGED)
    wait_until(lambda: http.post(PATH, json=chat()).headers["x-claw-version"] == "otter@v1", timeout_s=2)

    assert first.headers["x-claw-version"] == "otter@v0"
    assert engine.calls[0].body["model"] == "tiny"
    assert engine.calls[-1].body["model"] == "otter-v1-abc"


def test_a_call_in_flight_ends_on_the_version_it_began_with(
    http: httpx.Client, adapter: Version, engine: FakeEngine
) -> None:
    engine.script.pause_s = 0.1
    with http.stream("POST", PATH, json=chat(stream=True)) as response:
        Alias.objects.filter(policy=adapter.policy).update(version=adapter)
        notify_processes(ROUTES_CHANGED)
        assert "data: [DONE]" in list(response.iter_lines())

    assert response.headers["x-claw-version"] == "otter@v0"


def test_a_new_key_works_at_once(gateway: GatewayServer, agent: Agent) -> None:
    _, secret = create_key(agent=agent, actor="test", scope=Scope.AGENT)

    def call() -> int:
        return httpx.post(gateway.url + PATH, json=chat(), headers={"Authorization": f"Bearer {secret}"}).status_code

    wait_until(lambda: call() == 200, timeout_s=2)


def test_a_new_key_works_right_after_a_wrong_one(
    gateway: GatewayServer, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "notify_processes", lambda _notice: None)  # nor does the notice come in time
    with httpx.Client(base_url=gateway.url) as client:
        for _ in range(2):
            assert client.get("/v1/models", headers={"x-api-key": "claw-wrong"}).status_code == 401
            _, secret = create_key(agent=agent, actor="x")
            assert client.get("/v1/models", headers={"x-api-key": secret}).status_code == 200


@pytest.fixture
def away(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No snapshot can be loaded any more."""

    def fail() -> routes.Snapshot:
        raise DatabaseError("away")

    monkeypatch.setattr(routes, "load_snapshot", fail)


def test_the_last_snapshot_serves_while_postgres_is_away(http: httpx.Client, away: None) -> None:
    notify_processes(ROUTES_CHANGED)
    assert http.post(PATH, json=chat()).status_code == 200
    assert http.post(PATH, json=chat()).status_code == 200


@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/models"])
def test_who_cannot_be_looked_up_is_not_refused_for_good(gateway: GatewayServer, path: str, away: None) -> None:
    """A key made just before Postgres went away is good: a 401 would end the agent's work."""
    headers = {"Authorization": "Bearer claw-new"}
    body = None if path == "/v1/models" else chat()
    response = httpx.request("GET" if body is None else "POST", gateway.url + path, json=body, headers=headers)
    assert (response.status_code, response.headers["retry-after"].isdigit()) == (503, True)
    assert "database does not answer" in response.json()["error"]["message"]
    assert httpx.post(gateway.url + PATH, json=chat()).status_code == 401  # no key at all


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, chat(model="otter@v9")),
        ("/v1/embeddings", {"model": "otter@v9", "input": "a"}),
        ("/v1/messages/count_tokens", {"model": "otter@v9", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_a_version_that_cannot_be_looked_up_may_be_there_later(
    http: httpx.Client, path: str, body: dict[str, object], away: None
) -> None:
    response = http.post(path, json=body)
    assert (response.status_code, response.headers["retry-after"].isdigit()) == (503, True)


def test_a_gateway_without_calls_tells_that_postgres_is_away(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, away: None
) -> None:
    assert http.get("/readyz").json()["database"] is True  # for a moment's quiet nobody is alarmed
    monkeypatch.setattr(routes, "STALE_AFTER_S", 0.0)
    assert http.get("/readyz").json()["database"] is False


def test_a_notice_that_crashes_is_not_the_last_that_is_heard(
    http: httpx.Client, adapter: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> routes.Snapshot:
        raise ValueError("nobody has thought of this")

    def is_heard() -> bool:
        return bool(http.get("/readyz").json()["redis"])

    wait_until(is_heard)
    with monkeypatch.context() as broken:
        broken.setattr(routes, "load_snapshot", fail)
        notify_processes(ROUTES_CHANGED)
        wait_until(lambda: not is_heard())
    wait_until(is_heard)
    Alias.objects.filter(policy=adapter.policy).update(version=adapter)
    notify_processes(ROUTES_CHANGED)
    wait_until(lambda: http.post(PATH, json=chat()).headers["x-claw-version"] == "otter@v1")


def test_without_any_snapshot_it_says_that_it_is_starting(
    key: ApiKey, secret: str, monkeypatch: pytest.MonkeyPatch, spool_dir: object
) -> None:
    def fail() -> routes.Snapshot:
        raise DatabaseError("away")

    monkeypatch.setattr(routes, "load_snapshot", fail)
    with GatewayServer() as gateway:
        response = httpx.post(gateway.url + PATH, json=chat(), headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 503
    assert response.headers["retry-after"]


def test_models_are_listed_with_the_version_they_mean(http: httpx.Client, adapter: Version) -> None:
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE)
    notify_processes(ROUTES_CHANGED)

    def names() -> dict[str, str]:
        return {card["id"]: card["version"] for card in http.get("/v1/models").json()["data"]}

    wanted = {"otter": "otter@v0", "default": "otter@v0", "otter@candidate": "otter@v1"}
    wait_until(lambda: names() == wanted)
    assert http.get("/v1/models/otter@v1").json()["version"] == "otter@v1"
    assert http.get("/v1/models/cat").json()["error"]["code"] == "model_not_found"


def test_models_need_a_key(gateway: GatewayServer) -> None:
    assert httpx.get(gateway.url + "/v1/models").status_code == 401
    assert httpx.get(gateway.url + "/v1/models/otter").status_code == 401


def test_health_says_what_is_missing(http: httpx.Client, engine_row: Engine) -> None:
    assert http.get("/healthz").json() == {"status": "up"}
    wait_until(lambda: http.get("/readyz").status_code == 200)
    engine_row.state = EngineState.DOWN
    engine_row.save()
    notify_processes(ROUTES_CHANGED)
    wait_until(lambda: http.get("/readyz").status_code == 503)
    response = http.get("/readyz")
    assert int(response.headers["retry-after"]) > 0
    ready = response.json()
    assert (ready["database"], ready["redis"], ready["engine"], ready["waiting_calls"]) == (True, True, False, 0)
