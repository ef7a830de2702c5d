"""Claude Code, headless: one session of three turns, resumed by a new process each time."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.clients.configs import write_claude_code
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import install_node, install_npm
from tests.clients.pool import check_conversation
from tests.clients.running import Place

PACKAGE = "@anthropic-ai/claude-code@2.1.332"
FLAGS = ("--allowedTools", "Bash", "--output-format", "text")
ROOT_ENV = {"IS_SANDBOX": "1"}  # it refuses to work for the root user otherwise

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


def test_a_resumed_session_is_one_trajectory(gateway: GatewayProcess, pool: ReadPool, tmp_path: Path) -> None:
    node, programs = install_node(), install_npm("claude-code", PACKAGE)
    env = ROOT_ENV | write_claude_code(url=gateway.url, key=gateway.secret, model=MODEL)
    place = Place.make(tmp_path, env=env, path=str(node))
    session_id = str(uuid4())

    for number, turn in enumerate(TURNS):
        which = "--resume" if number else "--session-id"
        assert "Answer number" in place.run([programs / "claude", "-p", turn, which, session_id, *FLAGS])

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key == session_id
