"""What went through the gateway becomes steps in the pool: token for token as sampled, linked turn to turn."""

import json
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.registry.models import Version
from apps.trajectories.models import Exchange, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import StepView, load_steps
from tests.apps.gateway.conftest import chat, read_events
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"
TOOL = {"name": "look", "arguments": '{"where": "here"}'}


def ask(http: httpx.Client, messages: list[Any], *, path: str = PATH, **fields: Any) -> dict[str, Any]:
    """Return the assistant message of one call, streamed or not."""
    response = http.post(path, json=chat(messages=messages, **fields))
    assert response.status_code == 200
    if not fields.get("stream"):
        return dict(response.json()["choices"][0]["message"])
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for event in read_events(response)[:-1]:
        for choice in json.loads(event)["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                known = message.setdefault(
                    "tool_calls", [{"id": "", "type": "function", "function": {"name": "", "arguments": ""}}]
                )
                known[0]["id"] += call.get("id") or ""
                for name, text in call["function"].items():
                    known[0]["function"][name] += text or ""
    return message


def fold() -> list[StepView]:
    """Fold what the gateway wrote and return the steps of the one trajectory."""
    fold_pending()
    assert not Exchange.objects.set_aside().exists()
    return load_steps(Trajectory.objects.get())


def assert_exact(views: list[StepView], engine: FakeEngine) -> None:
    assert len(views) == len(engine.calls)
    for view, call in zip(views, engine.calls, strict=True):
        assert view.row.is_exact
        assert view.prompt_ids == call.prompt_token_ids
        assert view.completion_ids == call.choices[0].token_ids
        assert view.logprobs == pytest.approx(call.choices[0].logprobs, abs=1e-6)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_turns_without_any_mark_are_one_conversation(
    http: httpx.Client, engine: FakeEngine, version: Version, is_streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    for text in ("and now?", "bye"):
        messages.append(ask(http, messages, stream=is_streamed))
        messages.append({"role": "user", "content": text})
    ask(http, messages, stream=is_streamed)

    views = fold()

    assert_exact(views, engine)
    assert [view.row.parent_id for view in views] == [None, views[0].row.id, views[1].row.id]
    assert {view.row.version for view in views} == {version}
    assert views[2].messages == messages


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_round_is_anchored_by_the_id_of_the_call(
    http: httpx.Client, engine: FakeEngine, is_streamed: bool
) -> None:
    question = {"role": "user", "content": "look"}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    engine.script.tool = TOOL
    answer = ask(http, [question], tools=tools, stream=is_streamed)
    engine.script.tool = None
    call = answer["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}
    compacted = [{"role": "user", "content": "earlier: somebody asked us to look"}, {**answer, "content": None}, result]
    ask(http, compacted, tools=tools, stream=is_streamed)

    views = fold()

    assert_exact(views, engine)
    assert views[1].row.parent_id == views[0].row.id
    assert views[0].row.finish_reason == "tool_calls"


def test_calls_to_a_trajectorys_own_address_land_in_it(http: httpx.Client, engine: FakeEngine, key: ApiKey) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)
    for text in ("one", "two"):
        ask(http, [{"role": "user", "content": text}], path=f"/t/{trajectory.id}{PATH}")
    views = fold()
    assert_exact(views, engine)
    assert {view.row.trajectory_id for view in views} == {trajectory.id}


def test_calls_with_a_session_header_are_one_trajectory(http: httpx.Client, engine: FakeEngine) -> None:
    http.headers["x-session-id"] = "order-17"
    for text in ("one", "two"):
        ask(http, [{"role": "user", "content": text}])
    assert_exact(fold(), engine)
    assert Trajectory.objects.get().session_key == "order-17"


def test_several_choices_are_sibling_steps(http: httpx.Client, engine: FakeEngine) -> None:
    ask(http, [{"role": "user", "content": "hello"}], n=2)
    views = fold()
    assert [view.row.choice for view in views] == [0, 1]
    assert [view.completion_ids for view in views] == [choice.token_ids for choice in engine.calls[0].choices]
