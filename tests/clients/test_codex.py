"""Codex: one thread of three turns, resumed by a new process each time; a compaction; a sub-agent."""

from pathlib import Path

import pytest

from apps.trajectories.models import SideCall
from tests.clients.configs import write_codex
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import DELEGATION, STORY, TURNS
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import find_node, require_npm
from tests.clients.pool import check_conversation
from tests.clients.running import Place

PACKAGE = "@openai/codex@0.171.0"
FLAGS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
COMPACT_AT = 20_000  # tokens; without a story it needs half of them

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


class Codex:
    """`say` runs it over one turn of its thread."""

    def __init__(self, folder: Path, *, gateway: GatewayProcess, further: str = "") -> None:
        self._program = require_npm("codex", PACKAGE) / "codex"
        self._place = Place.make(folder, env={"CLAW_API_KEY": gateway.secret}, path=str(find_node()))
        home = self._place.home / ".codex"
        home.mkdir()
        (home / "config.toml").write_text(further + write_codex(url=gateway.url, model=MODEL))
        self._which: tuple[str, ...] = ()

    def say(self, text: str) -> str:
        """Return what it printed."""
        printed = self._place.run([self._program, "exec", *self._which, *FLAGS, text])
        self._which = ("resume", "--last")
        return printed


def test_a_resumed_thread_is_one_session(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    codex = Codex(tmp_path, gateway=gateway)

    for turn in TURNS:
        assert "Answer number" in codex.say(turn)

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key
    assert {step.row.epoch for step in session.main} == {0}


def test_a_compaction_is_a_side_call_of_its_session(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    codex = Codex(tmp_path, gateway=gateway, further=f"model_auto_compact_token_limit = {COMPACT_AT}\n")

    for turn in (STORY, TURNS[0], TURNS[2]):
        codex.say(turn)

    (session,) = pool()
    assert session.side_calls == [SideCall.COMPACTION]
    assert {step.row.epoch for step in session.main} == {0, 1}


def test_a_sub_agent_is_a_trajectory_below_its_parent(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    codex = Codex(tmp_path, gateway=gateway)

    codex.say(DELEGATION)

    parent, child = pool()
    assert child.row.parent == parent.row
    assert {step.row.side_call for step in child.steps} == {SideCall.SUBAGENT}
    assert parent.side_calls == []
