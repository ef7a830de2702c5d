"""Histories that an engine or its chat template would refuse: what it is asked instead, and what is kept."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey, Project
from apps.gateway.prompt_form import KnownForms, Prompt, PromptForm, make_messages
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import chat, only_exchange
from tests.apps.gateway.messages_client import COUNT_PATH
from tests.conftest import OTHER_SECRET
from tests.factories.registry import AliasFactory, ProviderFactory, TeacherFactory, VersionFactory
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CUT = '{"command": "ls -l /ho'
CALL_PLACE = "messages[1].tool_calls[0].function.arguments"


def call_with(arguments: Any) -> Json:
    return {"id": "call1", "type": "function", "function": {"name": "bash", "arguments": arguments}}


def said(role: str, content: Any, **fields: Any) -> Json:
    return {"role": role, "content": content, **fields}


class TestArguments:
    @pytest.mark.parametrize("arguments", [CUT, "ls", "[1]", "5", "null", "{"])
    def test_what_is_no_object_is_put_into_one(self, arguments: str) -> None:
        whole = call_with('{"a": 1}')
        history = [said("user", "hi"), said("assistant", None, tool_calls=[call_with(arguments), whole])]

        made, mended = make_messages(history, PromptForm.OPENING_JOINED)

        sent, kept = made[1]["tool_calls"]
        assert json.loads(sent["function"]["arguments"]) == {"unparsed_arguments": arguments}
        assert kept == whole
        assert mended == {CALL_PLACE: "unparsed_arguments"}
        assert history[1]["tool_calls"][0]["function"]["arguments"] == arguments

    @pytest.mark.parametrize("arguments", ['{"a": 1}', "{}", "", '{"a": "{"}'])
    def test_what_an_engine_reads_stays_as_it_is(self, arguments: str) -> None:
        history = [said("assistant", None, tool_calls=[call_with(arguments)])]

        assert make_messages(history, PromptForm.OPENING_JOINED) == (history, {})

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (
                CHAT,
                chat(
                    messages=[
                        said("user", "hi"),
                        said("assistant", None, tool_calls=[call_with(CUT)]),
                        said("tool", "broken", tool_call_id="call1"),
                    ]
                ),
            ),
            (
                RESPONSES,
                {
                    "model": "otter",
                    "input": [
                        said("user", "hi"),
                        {"type": "function_call", "call_id": "call1", "name": "bash", "arguments": CUT},
                        {"type": "function_call_output", "call_id": "call1", "output": "broken"},
                    ],
                },
            ),
        ],
        ids=["chat", "responses"],
    )
    def test_a_session_goes_on_after_a_call_that_the_limit_cut(
        self, http: httpx.Client, engine: FakeEngine, path: str, body: Json
    ) -> None:
        response = http.post(path, json=body)

        assert response.status_code == 200, response.text
        assert response.headers["x-claw-mended"] == CALL_PLACE
        (asked,) = engine.calls[0].body["messages"][1]["tool_calls"]
        assert json.loads(asked["function"]["arguments"]) == {"unparsed_arguments": CUT}
        exchange = only_exchange()
        assert exchange.is_exact
        assert json.loads(bytes(exchange.request)) == body  # as it was sent
        assert json.loads(bytes(exchange.sampling))["mended"] == {CALL_PLACE: "unparsed_arguments"}

    def test_a_cut_call_comes_back_from_anthropics_clients_as_they_got_it(
        self, http: httpx.Client, engine: FakeEngine
    ) -> None:
        block = {"type": "tool_use", "id": "call1", "name": "bash", "input": {"unparsed_arguments": CUT}}
        result = {"type": "tool_result", "tool_use_id": "call1", "content": "broken"}
        messages = [said("user", "hi"), said("assistant", [block]), said("user", [result])]

        response = http.post(MESSAGES, json={"model": "otter", "max_tokens": 9, "messages": messages})

        assert "x-claw-mended" not in response.headers
        (asked,) = engine.calls[0].body["messages"][1]["tool_calls"]
        assert json.loads(asked["function"]["arguments"]) == {"unparsed_arguments": CUT}


class TestForms:
    def test_system_messages_at_the_start_become_one(self) -> None:
        history = [said("system", "A"), said("developer", [{"type": "text", "text": "B"}]), said("user", "hi")]

        made, mended = make_messages(history, PromptForm.OPENING_JOINED)

        assert made == [said("system", "A\n\nB"), said("user", "hi")]
        assert mended == {"messages": "opening_joined"}

    @pytest.mark.parametrize(
        "history",
        [
            [said("system", "A"), said("user", "hi"), said("system", "B"), said("user", "ho")],
            [said("system", "A"), said("system", "B", tools=[1])],
            [said("user", "hi"), said("user", "ho")],
        ],
    )
    def test_all_else_goes_as_it_was_sent(self, history: list[Json]) -> None:
        assert make_messages(history, PromptForm.OPENING_JOINED) == (history, {})

    def test_later_system_messages_become_reminders_where_they_stand(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "data:,"}}
        history = [said("system", "A"), said("user", "hi"), said("system", "B"), said("developer", [picture])]

        made, mended = make_messages(history, PromptForm.SYSTEM_FIRST)

        assert [message["role"] for message in made] == ["system", "user", "user", "user"]
        assert made[2]["content"] == "<system-reminder>\nB\n</system-reminder>"
        assert made[3]["content"][1] == picture
        assert mended == {"messages": "system_first"}

    def test_neighbours_of_one_role_become_one_message(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "data:,"}}
        history = [
            said("user", "a"),
            said("user", "b"),
            said("user", [picture]),
            said("assistant", "x", reasoning_content="r"),
            said("assistant", None, tool_calls=[call_with("{}")], reasoning_content="s"),
            said("assistant", "y", tool_calls=None),
            said("tool", "1", tool_call_id="call1"),
            said("tool", "2", tool_call_id="call2"),
        ]

        made, _ = make_messages(history, PromptForm.TAKING_TURNS)

        assert made == [
            said("user", [{"type": "text", "text": "a\n\nb"}, picture]),
            said("assistant", "x\n\ny", reasoning_content="r\n\ns", tool_calls=[call_with("{}")]),
            *history[6:],
        ]

    def test_without_a_system_the_user_says_it_first(self) -> None:
        made, _ = make_messages([said("system", "A"), said("user", "hi")], PromptForm.NO_SYSTEM)

        assert made == [said("user", "A\n\nhi")]
        assert make_messages([said("user", "hi")], PromptForm.NO_SYSTEM) == ([said("user", "hi")], {})

    def test_a_form_that_changes_nothing_is_passed_over(self) -> None:
        prompt = Prompt([said("user", "a"), said("user", "b")], known=KnownForms(), template="tiny")

        assert prompt.make_stricter(400, b"roles must alternate")
        assert (prompt.form, prompt.messages) == (PromptForm.TAKING_TURNS, [said("user", "a\n\nb")])
        assert not prompt.make_stricter(400, b"roles must alternate")

    @pytest.mark.parametrize(
        ("status", "refusal"),
        [
            (422, b"roles must alternate"),
            (400, b"temperature is too high"),
            (400, b"14 validation errors:\n  {'loc': 'body.messages.0.ChatCompletionSystemMessageParam.name'}"),
        ],
    )
    def test_another_refusal_changes_no_form(self, status: int, refusal: bytes) -> None:
        prompt = Prompt([said("user", "a"), said("user", "b")], known=KnownForms(), template="tiny")

        assert not prompt.make_stricter(status, refusal)

    def test_forms_of_many_templates_do_not_pile_up(self) -> None:
        forms = KnownForms()
        for number in range(2500):
            forms.note(str(number), PromptForm.SYSTEM_FIRST)

        assert forms.find("2499") == PromptForm.SYSTEM_FIRST
        assert forms.find("0") == PromptForm.OPENING_JOINED


REMINDED: list[Json] = [said("user", "hello"), said("system", "It is noon."), said("user", "and?")]


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "roles"),
        [
            ("", ["system", "user", "system", "user"]),
            ("system first", ["system", "user", "user", "user"]),
            ("turns", ["system", "user"]),
            ("no system", ["user"]),
        ],
    )
    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_claude_codes_system_messages_reach_every_template(
        self, http: httpx.Client, engine: FakeEngine, template: str, roles: list[str], *, is_streamed: bool
    ) -> None:
        engine.script.template = template
        body = {"model": "otter", "max_tokens": 9, "system": "Be brief.", "messages": REMINDED, "stream": is_streamed}

        answers = [http.post(MESSAGES, json=body) for _ in range(2)]

        assert [answer.status_code for answer in answers] == [200, 200]
        asked = [[message["role"] for message in call.body["messages"]] for call in engine.calls]
        assert asked == [roles, roles]
        text = json.dumps(engine.calls[0].body["messages"])
        assert all(said in text for said in ("Be brief.", "hello", "It is noon.", "and?"))
        kept = Exchange.objects.order_by("id").first()
        assert kept is not None
        assert json.loads(bytes(kept.request)) == body
        assert len(json.loads(bytes(kept.chat_request or b""))["messages"]) == 4
        assert kept.is_exact
        assert ("mended" in json.loads(bytes(kept.sampling))) == bool(template)

    def test_what_the_template_took_is_asked_at_once_the_next_time(
        self, http: httpx.Client, engine: FakeEngine
    ) -> None:
        engine.script.template = "turns"
        http.post(CHAT, json=chat(messages=REMINDED))
        engine.script.template = ""

        http.post(CHAT, json=chat(messages=REMINDED))

        assert [message["role"] for message in engine.calls[1].body["messages"]] == ["user"]

    def test_tokens_are_counted_in_the_form_that_is_asked(self, http: httpx.Client, engine: FakeEngine) -> None:
        engine.script.template = "system first"

        response = http.post(COUNT_PATH, json={"model": "otter", "messages": REMINDED})

        assert response.json() == {"input_tokens": 30}
        assert [message["role"] for message in engine.counted[0]["messages"]] == ["user", "user", "user"]

    def test_a_refusal_of_another_kind_is_the_clients_to_see(self, http: httpx.Client, engine: FakeEngine) -> None:
        engine.script.failures = [400]

        response = http.post(CHAT, json=chat(messages=REMINDED))

        assert response.status_code == 400
        assert response.json()["error"]["message"] == "overloaded"
        assert engine.calls == []

    @pytest.mark.parametrize(
        "messages",
        [
            [said("user", "hello"), said("system", "It is noon.", name=5)],
            [said("user", "hello", name=5), said("user", "and?", name="ann")],
        ],
    )
    def test_a_faulty_message_teaches_nothing(
        self, http: httpx.Client, engine: FakeEngine, messages: list[Json]
    ) -> None:
        response = http.post(CHAT, json=chat(messages=messages))

        assert response.status_code == 400, response.text
        assert "Input should be a valid string" in response.json()["error"]["message"]
        assert http.post(CHAT, json=chat(messages=REMINDED)).status_code == 200
        assert engine.calls[0].body["messages"] == REMINDED

    @pytest.mark.parametrize("path", [CHAT, COUNT_PATH])
    def test_what_one_team_teaches_changes_no_other_teams_prompts(
        self, http: httpx.Client, engine: FakeEngine, other_key: ApiKey, other_project: Project, path: str
    ) -> None:
        AliasFactory.create(version=VersionFactory.create(policy__project=other_project, policy__slug="theirs"))
        engine.script.template = "no system"
        assert http.post(path, json={"model": "otter", "messages": REMINDED}).status_code == 200
        engine.script.template = ""

        theirs = {"Authorization": f"Bearer {OTHER_SECRET}"}
        http.post(CHAT, json=chat(model="theirs", messages=REMINDED), headers=theirs).raise_for_status()
        http.post(CHAT, json=chat(messages=REMINDED)).raise_for_status()

        asked, mine = (call.body["messages"] for call in engine.calls[-2:])
        assert asked == REMINDED
        assert len(mine) == 1

    def test_a_template_that_takes_no_form_says_so(self, http: httpx.Client, engine: FakeEngine) -> None:
        engine.script.template = "none"

        response = http.post(CHAT, json=chat(messages=REMINDED))

        assert response.status_code == 400
        assert "must alternate" in response.json()["error"]["message"]
        engine.script.template = ""
        assert http.post(CHAT, json=chat(messages=REMINDED)).status_code == 200
        assert len(engine.calls[0].body["messages"]) == 3  # nothing was learned of it

    @pytest.fixture
    def elsewhere(self) -> Iterator[FakeEngine]:
        with FakeEngine() as server:
            yield server

    def test_a_teachers_template_is_its_own(
        self, http: httpx.Client, key: ApiKey, engine: FakeEngine, elsewhere: FakeEngine
    ) -> None:
        provider = ProviderFactory.create(project=key.agent.project, base_url=f"{elsewhere.url}/v1")
        TeacherFactory.create(engine=provider, name="big-one")
        elsewhere.script.template = "turns"

        assert http.post(CHAT, json=chat(model="big-one", messages=REMINDED)).status_code == 200
        assert http.post(CHAT, json=chat(messages=REMINDED)).status_code == 200

        assert [len(server.calls[0].body["messages"]) for server in (elsewhere, engine)] == [1, 3]
