"""Claude Code, headless: one session of three turns, resumed by a new process each time; its side calls."""

from pathlib import Path

import pytest

from apps.trajectories.models import SideCall
from tests.clients.claude_code import ClaudeCode
from tests.clients.conftest import ReadPool
from tests.clients.engine import DELEGATION, TURNS, ToolUsingEngine
from tests.clients.gateway import GatewayProcess
from tests.clients.pool import check_conversation, said_by_tools

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.fixture
def claude(gateway: GatewayProcess, tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(tmp_path, gateway=gateway)


def test_a_resumed_session_is_one_trajectory(claude: ClaudeCode, pool: ReadPool) -> None:
    for turn in TURNS:
        assert "Answer number" in claude.say(turn)

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key == claude.session_id


def test_a_sub_agent_is_a_trajectory_below_its_parent(claude: ClaudeCode, pool: ReadPool) -> None:
    assert "Answer number" in claude.say(DELEGATION)

    parent, child = pool()
    assert parent.row.session_key == claude.session_id
    assert child.row.parent == parent.row
    assert {step.row.side_call for step in child.steps} == {SideCall.SUBAGENT}
    assert said_by_tools(child.steps[1].messages)
    assert parent.side_calls == []


def test_a_compaction_is_a_side_call_of_its_session(claude: ClaudeCode, pool: ReadPool) -> None:
    for turn in (TURNS[0], "/compact", TURNS[1]):
        claude.say(turn)

    (session,) = pool()
    assert session.side_calls == [SideCall.COMPACTION]
    assert [step.row.finish_reason for step in session.main] == ["tool_calls", "stop"] * 2


def test_a_title_is_a_side_call_of_its_session(claude: ClaudeCode, engine: ToolUsingEngine, pool: ReadPool) -> None:
    with claude.open_window() as window:
        window.wait_for(lambda: "/effort" in window.screen)
        window.enter(TURNS[0])
        window.wait_for(lambda: len(engine.calls) == 3 and "number" in window.screen)

    (session,) = pool()
    assert session.side_calls == [SideCall.TITLE]
    assert [step.row.finish_reason for step in session.main] == ["tool_calls", "stop"]
