"""Earlier answers come from the pool: chains of responses, references to items, a response once more."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from apps.accounts.models import Agent, CaptureMode
from apps.accounts.services import set_capture
from apps.gateway.responses import memory
from apps.gateway.spool import Spool
from apps.trajectories.models import Exchange, ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer, wait_until
from tests.apps.gateway.responses import LOOK, PATH, Json, ask, ask_for, check_response
from tests.apps.gateway.test_spool import make_record
from tests.apps.gateway.test_to_the_pool import assert_exact, fold
from tests.conftest import OTHER_SECRET
from tests.factories.accounts import ApiKeyFactory
from tests.factories.registry import AliasFactory, PolicyFactory, VersionFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import Proxy

both = pytest.mark.parametrize("is_streamed", [False, True])
UNKNOWN = "resp_01k9x3v5e7abcdefghjkmnpqrs"


def call(gateway: GatewayServer, secret: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.Client(base_url=gateway.url, headers=headers, timeout=30, trust_env=False)


@pytest.fixture
def stranger(gateway: GatewayServer) -> Iterator[httpx.Client]:
    """Calls the same gateway with another team's key."""
    key = ApiKeyFactory.create(secret=OTHER_SECRET)
    version = VersionFactory.create(policy=PolicyFactory.create(project=key.agent.project, slug="otter"))
    AliasFactory.create(version=version)
    headers = {"Authorization": f"Bearer {OTHER_SECRET}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


@both
def test_a_chain_of_responses_is_one_conversation(http: httpx.Client, engine: FakeEngine, is_streamed: bool) -> None:
    engine.script.reasoning = "Let me see."
    engine.script.tool = {"name": "look", "arguments": {}}
    first = ask(http, stream=is_streamed, instructions="Be brief.", tools=[LOOK])
    engine.script.tool, engine.script.reasoning = None, ""
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}
    second = ask(http, stream=is_streamed, previous_response_id=first["id"], input=[result], tools=[LOOK])
    assert second["previous_response_id"] == first["id"]
    ask(http, stream=is_streamed, previous_response_id=second["id"], input="and now?", instructions="Be long.")

    function = {"name": "look", "arguments": "{}"}
    assert engine.calls[-1].body["messages"] == [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Let me see.",
            "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call["call_id"], "content": "nothing"},
        {"role": "assistant", "content": "Hello 🦦 you"},
        {"role": "user", "content": "and now?"},
    ]
    views = fold()
    assert_exact(views, engine)
    assert [view.row.parent_id for view in views] == [None, views[0].row.id, views[1].row.id]


def test_a_long_chain_is_kept_once_and_goes_on(http: httpx.Client, engine: FakeEngine) -> None:
    words = " ".join(map(str, range(4000)))
    answers = [ask(http, input=words)]
    for text in ("one", "two", "three"):
        answers.append(ask(http, previous_response_id=answers[-1]["id"], input=text))

    assert Exchange.objects.exclude(stem=None).count() == 3
    said = [message["content"] for message in engine.calls[-1].body["messages"] if message["role"] == "user"]
    assert said == [words, "one", "two", "three"]
    assert [http.get(f"{PATH}/{answer['id']}").json() for answer in answers] == answers
    views = fold()
    assert_exact(views, engine)
    assert [view.row.parent_id for view in views[1:]] == [view.row.id for view in views[:-1]]


def test_two_may_go_on_from_one_answer(http: httpx.Client, engine: FakeEngine) -> None:
    first = ask(http)
    for text in ("left", "right"):
        ask(http, previous_response_id=first["id"], input=text)
    views = fold()
    assert [view.row.parent_id for view in views] == [None, views[0].row.id, views[0].row.id]


def test_items_that_were_answered_may_be_named(http: httpx.Client, engine: FakeEngine) -> None:
    first = ask(http)
    (message,) = first["output"]
    for reference in ({"type": "item_reference", "id": message["id"]}, {"id": message["id"]}):
        ask(http, input=[{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "and?"}])
        assert engine.calls[-1].body["messages"][1] == {"role": "assistant", "content": "Hello 🦦 you"}


@pytest.mark.parametrize("response_id", [UNKNOWN, "resp_stub000010", "x" * 5000, "chatcmpl-1"])
def test_an_unknown_response_is_refused(http: httpx.Client, engine: FakeEngine, response_id: str) -> None:
    answer = http.post(PATH, json=ask_for(previous_response_id=response_id))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert engine.calls == []
    assert http.get(f"{PATH}/{response_id[:200]}").status_code == 404


@both
def test_a_chain_goes_on_at_another_gateway_and_after_a_restart(
    world: None, secret: str, engine: FakeEngine, *, is_streamed: bool
) -> None:
    """Nothing is folded meanwhile: an answer is there as soon as its client has it."""
    answers: list[Json] = []
    with GatewayServer() as first, call(first, secret) as http:
        answers.append(ask(http, stream=is_streamed))
        with GatewayServer() as second, call(second, secret) as other:
            answers.append(ask(other, stream=is_streamed, previous_response_id=answers[-1]["id"], input="two"))
        answers.append(ask(http, stream=is_streamed, previous_response_id=answers[-1]["id"], input="three"))
    with GatewayServer() as third, call(third, secret) as http:
        answers.append(ask(http, stream=is_streamed, previous_response_id=answers[-1]["id"], input="four"))

    said = [message["content"] for message in engine.calls[-1].body["messages"]]
    assert said == ["hello", "Hello 🦦 you", "two", "Hello 🦦 you", "three", "Hello 🦦 you", "four"]
    views = fold()
    assert_exact(views, engine)
    assert [view.row.parent_id for view in views[1:]] == [view.row.id for view in views[:-1]]


def test_a_chain_that_begins_while_postgres_is_away_goes_on_from_the_spool(
    world: None, secret: str, engine: FakeEngine, postgres: Proxy
) -> None:
    """Also at another gateway of the host, and when the one that answered is gone."""
    with GatewayServer() as second, call(second, secret) as other:
        with GatewayServer() as first, call(first, secret) as http:
            postgres.shut()
            one = ask(http, stream=True)
            two = ask(other, previous_response_id=one["id"], input="two")
            assert http.get(f"{PATH}/{two['id']}").json() == two
        items = [{"type": "item_reference", "id": one["output"][0]["id"]}, {"role": "user", "content": "3"}]
        ask(other, stream=True, previous_response_id=two["id"], input=items)
        assert not Exchange.objects.exists()
        postgres.open()
        wait_until(lambda: Exchange.objects.count() == 3)
        ask(other, previous_response_id=two["id"], input="another three")

    said = [message["content"] for message in engine.calls[2].body["messages"]]
    assert said == ["hello", "Hello 🦦 you", "two", "Hello 🦦 you", "Hello 🦦 you", "3"]


def test_a_chain_waits_for_postgres(world: None, secret: str, postgres: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RETRY_EVERY_S", 0.05)
    with GatewayServer() as server, call(server, secret) as http, ThreadPoolExecutor(1) as pool:
        first = ask(http)
        postgres.shut()
        wait_until(lambda: not http.get("/readyz").json()["database"] or not ask(http))
        second = pool.submit(ask, http, previous_response_id=first["id"], input="two")
        time.sleep(0.2)  # it asks in vain a few times
        assert not second.done()
        postgres.open()
        assert second.result()["previous_response_id"] == first["id"]


def test_another_projects_answer_in_the_spool_is_unknown(http: httpx.Client, spool_dir: Path) -> None:
    spool = Spool(spool_dir)
    spool.append([make_record(response_id=UNKNOWN, response=b'{"object": "response"}')])
    assert http.post(PATH, json=ask_for(previous_response_id=UNKNOWN)).status_code == 400
    assert http.get(f"{PATH}/{UNKNOWN}").status_code == 404
    spool.seal()


def test_another_teams_answers_are_unknown(http: httpx.Client, stranger: httpx.Client) -> None:
    first = ask(http)
    code = stranger.post(PATH, json=ask_for(previous_response_id=first["id"])).json()["error"]["code"]
    assert code == "previous_response_not_found"
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert stranger.post(PATH, json=ask_for(input=[reference])).json()["error"]["code"] == "item_not_found"
    assert stranger.get(f"{PATH}/{first['id']}").status_code == 404


def test_an_answer_that_broke_off_is_not_gone_on_from(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.error_after = 3
    http.post(PATH, json=ask_for(stream=True))
    engine.script.error_after, engine.script.pause_s = None, 0.05
    with http.stream("POST", PATH, json=ask_for(stream=True)) as answer:
        next(answer.iter_lines())  # and leave
    wait_until(lambda: Exchange.objects.count() == 2)
    assert {row.status for row in Exchange.objects.all()} == {ExchangeStatus.ERROR, ExchangeStatus.ABORTED}
    for exchange in Exchange.objects.all():
        refused = http.post(PATH, json=ask_for(previous_response_id=exchange.response_id))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_incomplete")
        assert refused.json()["error"]["param"] == "previous_response_id"


def test_what_is_kept_of_an_answer_decides_whether_it_is_gone_on_from(
    world: None, secret: str, agent: Agent, engine: FakeEngine, request: pytest.FixtureRequest
) -> None:
    """`store: false` is said back and no more: the agent's policy is what counts."""
    set_capture(agent=agent, actor="x", mode=CaptureMode.REDACT)
    http = request.getfixturevalue("http")
    first = ask(http, input="I am ada@example.org", store=False)
    assert first["store"] is False
    ask(http, previous_response_id=first["id"], input="who?")
    assert engine.calls[-1].body["messages"][0]["content"] == "I am [redacted:email]"

    set_capture(agent=agent, actor="x", mode=CaptureMode.OFF)
    wait_until(lambda: "uncaptured" in ask(http)["id"])
    refused = http.post(PATH, json=ask_for(previous_response_id=ask(http)["id"]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert "not captured" in refused.json()["error"]["message"]


@both
def test_a_response_can_be_had_once_more(http: httpx.Client, is_streamed: bool) -> None:
    response = ask(http, stream=is_streamed)
    assert check_response(http.get(f"{PATH}/{response['id']}").json()) == response


def test_a_refused_calls_id_is_no_response(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.max_prompt_chars = 1
    assert http.post(PATH, json=ask_for()).status_code == 400
    exchange = Exchange.objects.get()
    answer = http.get(f"{PATH}/{exchange.response_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")


def test_reading_a_response_needs_a_key_and_no_stream(http: httpx.Client) -> None:
    response: Json = ask(http)
    path = f"{PATH}/{response['id']}"
    assert http.get(path, headers={"Authorization": "Bearer claw-no"}).status_code == 401
    assert http.get(path, params={"stream": "true"}).json()["error"]["param"] == "stream"
    assert http.delete(path).status_code == 405


def test_without_the_database_the_client_is_told_to_come_back(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(http)
    monkeypatch.setattr(memory, "PATIENCE_S", 0.1)

    async def connect_to_nobody() -> psycopg.AsyncConnection[tuple[Any, ...]]:
        return await psycopg.AsyncConnection.connect(host="127.0.0.1", port=1, connect_timeout=2)

    monkeypatch.setattr(memory, "connect", connect_to_nobody)
    answer = http.post(PATH, json=ask_for(previous_response_id=first["id"]))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "database_unavailable"
