"""Earlier answers come from the pool: chains of responses, references to items, a response once more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from apps.gateway.responses import memory
from apps.gateway.spool import Spool
from apps.trajectories.exchange_log import find_answers
from apps.trajectories.models import Exchange, ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer
from tests.apps.gateway.responses import LOOK, PATH, Json, ask, ask_for, check_response
from tests.apps.gateway.test_spool import make_record
from tests.apps.gateway.test_to_the_pool import assert_exact, fold
from tests.conftest import OTHER_SECRET
from tests.factories.accounts import ApiKeyFactory
from tests.factories.registry import AliasFactory, PolicyFactory, VersionFactory
from tests.fakes.engine import FakeEngine

both = pytest.mark.parametrize("is_streamed", [False, True])
UNKNOWN = "resp_01k9x3v5e7abcdefghjkmnpqrs"


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


def test_an_answer_that_may_still_be_in_the_spool_is_not_called_unknown(http: httpx.Client, spool_dir: Path) -> None:
    spool = Spool(spool_dir)  # of a process that is writing it
    spool.append([make_record()])
    answer = http.post(PATH, json=ask_for(previous_response_id=UNKNOWN))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    spool.seal()


def test_an_answer_that_is_replayed_while_it_is_asked_for_is_not_called_unknown(
    http: httpx.Client, spool_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(spool_dir)
    spool.append([make_record()])

    async def find_a_moment_too_early(*args: Any, **kwargs: Any) -> Any:
        found = await find_answers(*args, **kwargs)
        for file in spool.waiting_files():
            file.remove()
        return found

    monkeypatch.setattr(memory, "find_answers", find_a_moment_too_early)
    assert http.post(PATH, json=ask_for(previous_response_id=UNKNOWN)).status_code == 503
    assert http.post(PATH, json=ask_for(previous_response_id=UNKNOWN)).status_code == 400


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
    engine.script.error_after = None
    exchange = Exchange.objects.get(status=ExchangeStatus.ERROR)
    answer = http.post(PATH, json=ask_for(previous_response_id=exchange.response_id))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_incomplete")


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

    async def connect_to_nobody() -> psycopg.AsyncConnection[tuple[Any, ...]]:
        return await psycopg.AsyncConnection.connect(host="127.0.0.1", port=1, connect_timeout=2)

    monkeypatch.setattr(memory, "connect", connect_to_nobody)
    answer = http.post(PATH, json=ask_for(previous_response_id=first["id"]))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "database_unavailable"
