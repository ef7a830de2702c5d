"""From the client to engines and providers and back: splits, full engines and teachers, over HTTP."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.models import ApiKey
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.registry.deployments import HEAR_S
from apps.registry.models import Alias, AliasName, Deployment, DeploymentState, Engine, Teacher, Version, VersionKind
from apps.trajectories.models import Exchange, ExchangeStatus
from tests.apps.gateway.conftest import chat, only_exchange, read_events, wait_until
from tests.factories.registry import AliasFactory, EngineFactory, ProviderFactory, TeacherFactory, VersionFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"


@pytest.fixture
def elsewhere() -> Iterator[FakeEngine]:
    """A provider's server."""
    with FakeEngine() as server:
        yield server


@pytest.fixture
def teacher(key: ApiKey, elsewhere: FakeEngine) -> Teacher:
    provider = ProviderFactory.create(project=key.agent.project, base_url=f"{elsewhere.url}/v1")
    return TeacherFactory.create(engine=provider, name="big-one", model="vendor/big-1")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_teacher_is_asked_in_its_own_words_and_kept_as_text(
    teacher: Teacher, elsewhere: FakeEngine, engine: FakeEngine, http: httpx.Client, *, is_streamed: bool
) -> None:
    asked = chat(model="big-one", stream=is_streamed, seed=7, temperature=0.5)
    response = http.post(PATH, json=asked)

    assert response.status_code == 200, response.text
    assert response.headers["x-claw-version"] == "big-one"
    (call,) = elsewhere.calls
    assert call.headers["Authorization"] == "Bearer sk-of-a-teacher"
    options = {"stream_options": {"include_usage": True}} if is_streamed else {}
    assert call.body == {**asked, "model": "vendor/big-1", **options} | ({} if is_streamed else {"stream": False})
    assert engine.calls == []
    exchange = only_exchange()
    assert (exchange.status, exchange.is_exact) == (ExchangeStatus.COMPLETE, False)
    assert (exchange.version_id, exchange.engine_id) == (teacher.id, teacher.engine_id)
    assert exchange.prompt_token_ids is None
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [b""]
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["choices"][0]["message"]["content"] == "Hello 🦦 you"
    if is_streamed:
        assert read_events(response)[-1] == "[DONE]"


def test_log_probs_of_a_teacher_are_asked_for_when_the_client_wants_them(
    teacher: Teacher, elsewhere: FakeEngine, http: httpx.Client
) -> None:
    response = http.post(PATH, json=chat(model="big-one", logprobs=True))
    assert elsewhere.calls[0].body["logprobs"] is True
    assert response.json()["choices"][0]["logprobs"]["content"]
    assert not only_exchange().is_exact


def test_teachers_are_listed_and_named_among_the_models(teacher: Teacher, http: httpx.Client) -> None:
    assert "big-one" in [card["id"] for card in http.get("/v1/models").json()["data"]]
    assert "big-one" in http.post(PATH, json=chat(model="cat")).json()["error"]["message"]


def test_a_credential_that_nobody_can_read_is_said_at_once(
    teacher: Teacher, http: httpx.Client, settings: Settings
) -> None:
    settings.SECRET_KEY = "another key than before"
    notify_processes(ROUTES_CHANGED)

    def code() -> str | None:
        response = http.post(PATH, json=chat(model="big-one"))
        return response.json()["error"]["code"] if response.status_code == 503 else None

    wait_until(lambda: code() == "engine_misconfigured")


def test_a_split_is_stable_for_each_session_and_shown(version: Version, engine_row: Engine, http: httpx.Client) -> None:
    adapter = VersionFactory.create(policy=version.policy, number=1, adapter_path="/a/1", engine_name="otter-v1-abc")
    Deployment.objects.create(version=adapter, engine=engine_row, state=DeploymentState.LOADED)
    AliasFactory.create(version=adapter, name=AliasName.CANDIDATE, live_share=50)
    notify_processes(ROUTES_CHANGED)
    wait_until(lambda: "otter@candidate" in http.get("/v1/models").text)

    def ask(session: str) -> str:
        return http.post(PATH, json=chat(), headers={"x-session-id": session}).headers["x-claw-version"]

    answers = {session: {ask(session) for _ in range(2)} for session in map(str, range(30))}
    assert all(len(versions) == 1 for versions in answers.values())
    counts = Counter(versions.pop() for versions in answers.values())
    assert set(counts) == {"otter@v0", "otter@v1"}
    assert min(counts.values()) >= 5  # of 30 at even odds


def test_a_session_is_answered_by_one_of_two_engines(
    engine: FakeEngine, engine_row: Engine, elsewhere: FakeEngine, request: pytest.FixtureRequest
) -> None:
    EngineFactory.create(base_url=elsewhere.url)
    http: httpx.Client = request.getfixturevalue("http")
    for session in map(str, range(12)):
        for _ in range(2):
            http.post(PATH, json=chat(), headers={"x-session-id": session})

    wait_until(lambda: Exchange.objects.count() == 24)
    homes: dict[str, set[str]] = {}
    for session_key, engine_id in Exchange.objects.values_list("session_key", "engine_id"):
        homes.setdefault(session_key, set()).add(engine_id)
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 2


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_full_engine_is_a_503_that_says_when_to_come_back(
    http: httpx.Client, engine: FakeEngine, engine_row: Engine, settings: Settings, *, is_streamed: bool
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.3})
    engine_row.max_in_flight = 1
    engine_row.save()
    notify_processes(ROUTES_CHANGED)
    engine.script.first_pause_s = 1.0

    def is_refused() -> bool:
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda _: http.post(PATH, json=chat(stream=is_streamed)), range(2)))
        refused = [answer for answer in answers if answer.status_code == 503]
        if not refused:
            return False
        assert refused[0].json()["error"]["code"] == "engines_busy"
        assert int(refused[0].headers["retry-after"]) > 0
        return True

    wait_until(is_refused)


def test_calls_wait_while_an_engines_weights_change_and_are_answered_by_the_new_ones(
    version: Version, engine_row: Engine, engine: FakeEngine, http: httpx.Client
) -> None:
    """The name that they asked for means another version by then, and that one is on record."""
    whole = VersionFactory.create(
        policy=version.policy, number=1, adapter_path="/w/1", kind=VersionKind.WHOLE, engine_name=version.engine_name
    )
    Engine.objects.filter(pk=engine_row.pk).update(moving_since=timezone.now())
    notify_processes(ROUTES_CHANGED)
    time.sleep(HEAR_S)
    n_before = len(engine.calls)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(http.post, PATH, json=chat()) for _ in range(3)]
        time.sleep(0.3)
        assert len(engine.calls) == n_before
        Engine.objects.filter(pk=engine_row.pk).update(moving_since=None, weights=whole)
        Deployment.objects.create(version=whole, engine=engine_row, state=DeploymentState.LOADED)
        Alias.objects.filter(policy=version.policy, name=AliasName.LIVE).update(version=whole)
        notify_processes(ROUTES_CHANGED)
        answers = [call.result() for call in waiting]
    assert {(answer.status_code, answer.headers["x-claw-version"]) for answer in answers} == {(200, "otter@v1")}
    wait_until(lambda: Exchange.objects.filter(version_id=whole.id).count() == 3)
