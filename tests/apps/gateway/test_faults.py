"""Engines that fail, clients that leave: what the client is told and what is kept."""

import json

import httpx
import pytest
from pytest_django.fixtures import Settings

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.gateway import engines
from apps.registry.models import Engine, Version
from apps.trajectories.models import ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer, chat, only_exchange, read_events, wait_until
from tests.factories.registry import EngineFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("failures", [[503], [500, 502], [429, 503], ["drop"], ["drop", 404]])
def test_a_passing_fault_is_never_seen(
    http: httpx.Client, engine: FakeEngine, *, is_streamed: bool, failures: list[int | str]
) -> None:
    engine.script.failures = list(failures)

    response = http.post(PATH, json=chat(stream=is_streamed))

    assert response.status_code == 200
    assert engine.script.failures == []
    assert only_exchange().is_exact


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_engine_that_stays_away_is_a_503_with_retry_after(
    http: httpx.Client, engine_row: Engine, *, is_streamed: bool, settings: Settings, engine: FakeEngine
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.5})
    engine.script.failures = [503] * 20

    response = http.post(PATH, json=chat(stream=is_streamed))

    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert len(engine.script.failures) < 19
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    assert exchange.id == response.headers["x-request-id"]


def test_a_request_that_crashes_engines_is_not_tried_for_ever(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.failures = [500] * 20

    assert http.post(PATH, json=chat()).status_code == 503
    assert len(engine.script.failures) == 20 - engines.N_SERVER_FAULTS


def test_another_engine_takes_over_without_a_pause(
    engine: FakeEngine, engine_row: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FIRST_PAUSE_S", 30.0)
    dead = EngineFactory.create(base_url="http://127.0.0.1:1")
    http: httpx.Client = request.getfixturevalue("http")

    seconds = [http.post(PATH, json=chat()).elapsed.total_seconds() for _ in range(4)]

    assert max(seconds) < engines.FIRST_PAUSE_S
    assert len(engine.calls) == 4
    assert dead.id != engine_row.id


def test_a_version_that_no_engine_has_is_a_503(
    http: httpx.Client, version: Version, settings: Settings, engine_row: Engine
) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.3})
    version.policy.base_model = "another"
    version.policy.save()
    notify_processes(ROUTES_CHANGED)
    wait_until(lambda: http.post(PATH, json=chat()).status_code == 503)

    assert "no engine" in http.post(PATH, json=chat()).json()["error"]["message"]


def test_a_client_that_leaves_ends_the_engines_work_and_leaves_what_had_come(
    http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script.pieces = [f"{n} " for n in range(100)]
    engine.script.pause_s = 0.02

    with http.stream("POST", PATH, json=chat(stream=True)) as response:
        for n, _ in enumerate(response.iter_lines()):
            if n == 10:
                break

    exchange = only_exchange()
    (call,) = engine.calls
    wait_until(lambda: call.is_cancelled)
    assert call.n_chunks_sent < 100
    assert exchange.status == ExchangeStatus.ABORTED
    assert not exchange.is_exact
    ids = bytes(exchange.completion_token_ids[0])
    assert 0 < len(ids) < 400
    assert pack_ids(call.choices[0].token_ids).startswith(ids)
    assert pack_logprobs(call.choices[0].logprobs).startswith(bytes(exchange.completion_logprobs[0]))
    assert bytes(exchange.prompt_token_ids or b"") == pack_ids(call.prompt_token_ids)
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["choices"][0]["message"]["content"].startswith("0 1 2 ")
    assert kept["choices"][0]["finish_reason"] is None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_noticed(
    http: httpx.Client, engine: FakeEngine, *, is_streamed: bool
) -> None:
    engine.script.first_pause_s = 20

    with pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json=chat(stream=is_streamed), timeout=1)

    wait_until(lambda: engine.calls[0].is_cancelled)
    assert only_exchange().status == ExchangeStatus.ABORTED


def test_a_stream_that_breaks_ends_with_an_error_event(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.break_after = 3

    events = read_events(http.post(PATH, json=chat(stream=True)))

    error = json.loads(events[-1])["error"]
    assert error["code"] == "engine_broken"
    assert error["type"] == "server_error"
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    assert "broke off" in exchange.error
    assert json.loads(bytes(exchange.response or b""))["choices"][0]["message"]["content"] == "Hello"
    assert bytes(exchange.completion_token_ids[0]) == pack_ids(engine.calls[0].choices[0].token_ids[:2])


def test_an_engines_own_error_event_is_passed_on(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.error_after = 2

    events = read_events(http.post(PATH, json=chat(stream=True)))

    assert "the engine core died" in json.loads(events[-1])["error"]["message"]
    assert only_exchange().status == ExchangeStatus.ERROR


def test_an_engine_that_gives_up_before_anything_left_is_a_503(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.error_after = 0

    response = http.post(PATH, json=chat(stream=True))

    assert response.status_code == 503
    assert "the engine core died" in response.json()["error"]["message"]


def test_a_slow_engine_is_streamed_as_it_speaks(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.pause_s = 0.1

    with http.stream("POST", PATH, json=chat(stream=True)) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if '"content":"Hel"' in line)
        assert engine.calls[0].n_chunks_sent < 4
        rest = list(lines)

    assert rest[-2:] == ["data: [DONE]", ""]


def test_a_stop_of_the_server_lets_calls_finish(http: httpx.Client, engine: FakeEngine, gateway: GatewayServer) -> None:
    engine.script.pause_s = 0.1

    with http.stream("POST", PATH, json=chat(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        gateway.server.should_exit = True
        assert "data: [DONE]" in list(lines)

    assert only_exchange().status == ExchangeStatus.COMPLETE


def test_a_call_that_outlasts_the_stop_is_kept_as_aborted(
    http: httpx.Client, engine: FakeEngine, gateway: GatewayServer
) -> None:
    engine.script.pieces = ["x"] * 1000
    engine.script.pause_s = 0.1

    with http.stream("POST", PATH, json=chat(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        gateway.server.should_exit = True
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)

    assert only_exchange().status == ExchangeStatus.ABORTED
