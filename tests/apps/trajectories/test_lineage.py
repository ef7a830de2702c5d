"""Which session started which: by the client's own word or by the trace of the turn, never across keys."""

from typing import Any

import pytest

from apps.accounts.models import Agent, ApiKey
from apps.trajectories.models import Exchange, SideCall, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.services import complete_trajectory
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db

TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
COMPACT: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a context summarization assistant."},
    {"role": "user", "content": "<conversation>"},
]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def sub_agent(*, depth: int) -> list[dict[str, Any]]:
    return user(f"[Subagent Context] You are running as a subagent (depth {depth}/5). Be quick.")


def record(key: ApiKey, session: str = "", **fields: Any) -> Step:
    exchange: Exchange = ExchangeFactory.create(key=key, session_key=session, **fields)
    fold_pending()
    return Step.objects.select_related("trajectory").get(exchange_id=exchange.id)


def test_claude_codes_sub_agents_hang_on_their_session_side_by_side(key: ApiKey) -> None:
    main = record(key, "s", header={"x-claude-code-session-id": "s"})
    agents = [
        record(key, f"s/{name}", header={"x-claude-code-session-id": "s", "x-claude-code-agent-id": name})
        for name in ("a1", "a2", "a1", "a3")
    ]
    assert Trajectory.objects.count() == 4
    assert {step.trajectory.parent_id for step in agents} == {main.trajectory_id}
    assert {step.side_call for step in agents} == {SideCall.SUBAGENT}
    assert agents[0].trajectory_id == agents[2].trajectory_id
    assert main.trajectory.parent_id is None


@pytest.mark.parametrize(
    "header",
    [
        {"x-session-id": "child", "x-session-affinity": "child", "x-parent-session-id": "s"},
        {"thread-id": "child", "session-id": "s", "x-codex-parent-thread-id": "s", "x-openai-subagent": "collab_spawn"},
    ],
)
def test_a_parent_named_in_a_header_is_found(key: ApiKey, header: dict[str, str]) -> None:
    main = record(key, "s")
    child = record(key, "child", header=header)
    assert child.trajectory.parent_id == main.trajectory_id
    assert child.side_call == SideCall.SUBAGENT


def test_a_parent_that_is_recorded_later_is_found_with_the_next_call(key: ApiKey) -> None:
    header = {"x-session-id": "child", "x-parent-session-id": "s"}
    assert record(key, "child", header=header).trajectory.parent_id is None
    main = record(key, "s")
    assert record(key, "child", header=header).trajectory.parent_id == main.trajectory_id


def test_another_keys_session_is_no_parent(key: ApiKey, agent: Agent) -> None:
    other = ApiKeyFactory.create(agent=agent)
    record(other, "s", header=TRACE)
    named = record(key, "child", header={"x-session-id": "child", "x-parent-session-id": "s"})
    traced = record(key, "sub", header=TRACE, messages=sub_agent(depth=1))
    assert (named.trajectory.parent_id, traced.trajectory.parent_id) == (None, None)


def test_openclaws_sub_agents_hang_by_trace_on_the_level_above(key: ApiKey) -> None:
    main = record(key, "main", header=TRACE)
    first = record(key, "first", header=TRACE, messages=sub_agent(depth=1))
    second = record(key, "second", header=TRACE, messages=sub_agent(depth=1))
    below = record(key, "below", header=TRACE, messages=sub_agent(depth=2))
    parents = [step.trajectory.parent_id for step in (first, second, below)]
    assert parents == [main.trajectory_id, main.trajectory_id, second.trajectory_id]


def test_one_trace_over_ordinary_sessions_joins_none(key: ApiKey) -> None:
    """An application may put all that it does under one trace."""
    one = record(key, "one", header=TRACE)
    two = record(key, header=TRACE, messages=user("two"))
    three = record(key, header=TRACE, messages=user("three"))
    assert len({one.trajectory_id, two.trajectory_id, three.trajectory_id}) == 3
    assert not Trajectory.objects.exclude(parent=None).exists()


def test_a_compaction_without_a_name_joins_the_session_of_its_trace(key: ApiKey) -> None:
    main = record(key, "main", header=TRACE)
    record(key, "kid", header=TRACE, messages=sub_agent(depth=1))
    compaction = record(key, header=TRACE, messages=COMPACT)
    assert compaction.trajectory_id == main.trajectory_id
    assert (compaction.parent_id, compaction.side_call) == (None, SideCall.COMPACTION)


def test_a_compaction_under_a_name_of_its_own_is_linked_to_the_session_of_its_trace(key: ApiKey) -> None:
    main = record(key, "main", header=TRACE)
    flush = record(key, "internal", header=TRACE, messages=user("Pre-compaction memory flush. Store memories."))
    assert flush.trajectory_id != main.trajectory_id
    assert flush.trajectory.parent_id == main.trajectory_id


def test_a_compaction_that_could_be_anybodys_stays_alone(key: ApiKey) -> None:
    record(key, "one", header=TRACE)
    record(key, "two", header=TRACE)
    assert record(key, header=TRACE, messages=COMPACT).index == 0
    assert record(key, messages=COMPACT).index == 0


def test_a_session_that_is_over_gets_no_more_of_its_trace(key: ApiKey) -> None:
    main = record(key, "main", header=TRACE)
    complete_trajectory(trajectory=main.trajectory)
    compaction = record(key, header=TRACE, messages=COMPACT)
    assert compaction.trajectory_id != main.trajectory_id
