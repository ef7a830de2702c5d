"""Codex: one thread of three turns, resumed by a new process each time."""

from pathlib import Path

import pytest

from tests.clients.configs import write_codex
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import install_node, install_npm
from tests.clients.pool import check_conversation
from tests.clients.running import Place

PACKAGE = "@openai/codex@0.171.0"
FLAGS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


def test_a_resumed_thread_is_one_session(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    node, programs = install_node(), install_npm("codex", PACKAGE)
    place = Place.make(tmp_path, env={"CLAW_API_KEY": gateway.secret}, path=str(node))
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(write_codex(url=gateway.url, model=MODEL))

    for number, turn in enumerate(TURNS):
        resume = ("resume", "--last") if number else ()
        assert "Answer number" in place.run([programs / "codex", "exec", *resume, *FLAGS, turn])

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key
    assert {step.row.epoch for step in session.main} == {0}
