"""What OpenClaw's daemon asks a model beside the conversation: memory flush, compaction, sub-agents, heartbeats."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.trajectories.models import SideCall
from tests.clients.configs import write_openclaw
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import DELEGATION, STORY, TURNS, ToolUsingEngine
from tests.clients.gateway import GatewayProcess
from tests.clients.openclaw import OpenClaw
from tests.clients.pool import said_by_tools

CONTEXT = 32_768  # its system text and tools fill half of it
WAIT_S = 120

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def make_openclaw(folder: Path, *, gateway: GatewayProcess, context: int = 0, **defaults: Any) -> OpenClaw:
    """Return one whose agents have these defaults."""
    config = json.loads(write_openclaw(url=gateway.url, key=gateway.secret, model=MODEL))
    config["agents"]["defaults"] |= defaults
    if context:
        (entry,) = config["models"]["providers"]["claw"]["models"]
        entry["contextWindow"] = context
    return OpenClaw(folder, config=json.dumps(config))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for what the daemon does by itself."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


def test_a_compacted_session_is_one_trajectory(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    openclaw = make_openclaw(tmp_path, gateway=gateway, context=CONTEXT)

    with openclaw.run_daemon() as daemon:
        for turn in (TURNS[0], STORY, TURNS[0], TURNS[2]):
            assert "Answer number" in daemon.say(turn, session="otters", model=f"claw/{MODEL}")

    (session,) = pool()
    assert SideCall.COMPACTION in session.side_calls
    assert SideCall.FLUSH in session.side_calls
    epochs = [step.row.epoch or 0 for step in session.main]
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1}


def test_a_sub_agent_is_a_trajectory_below_its_parent(
    gateway: GatewayProcess, engine: ToolUsingEngine, pool: ReadPool, tmp_path: Path
) -> None:
    openclaw = make_openclaw(tmp_path, gateway=gateway)

    with openclaw.run_daemon() as daemon:
        daemon.say(DELEGATION, session="otters", model=f"claw/{MODEL}")
        wait_for(lambda: any("A background task com" in str(call.body["messages"]) for call in engine.calls))
        daemon.say(TURNS[2], session="otters", model=f"claw/{MODEL}")

    parent, child = pool()
    assert child.row.parent == parent.row
    assert {step.row.side_call for step in child.steps} == {SideCall.SUBAGENT}
    assert said_by_tools(child.steps[1].messages)
    assert set(parent.side_calls) == {SideCall.ANNOUNCE}
    assert [step.row.finish_reason for step in parent.main] == ["tool_calls", "stop", "stop"]


def test_a_heartbeat_is_a_side_call(
    gateway: GatewayProcess, engine: ToolUsingEngine, pool: ReadPool, tmp_path: Path
) -> None:
    openclaw = make_openclaw(tmp_path, gateway=gateway, heartbeat={"every": "10s", "target": "none"})

    with openclaw.run_daemon():
        wait_for(lambda: bool(engine.calls))

    (session,) = pool()
    assert set(session.side_calls) == {SideCall.HEARTBEAT}
    assert session.main == []
