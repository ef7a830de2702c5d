"""Python frameworks, all at once with one key, each through a conversation with a tool that begins like the others."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.conftest import ReadPool
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import require_python
from tests.clients.pool import check_conversation
from tests.clients.running import run_driver

RUNS = [
    ("autogen_agent",),
    ("langgraph_agent",),
    ("openai_agents_session", "responses"),
    ("openai_agents_session", "chat_completions"),
    ("pydantic_ai_agent", "chat"),
    ("pydantic_ai_agent", "responses"),
    ("litellm_loop", "openai"),
    ("litellm_loop", "anthropic"),
]
N_AT_ONCE = 3

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_each_conversation_is_one_trajectory_of_its_own(
    gateway: GatewayProcess, pool: ReadPool, tmp_path: Path
) -> None:
    python = require_python()

    def converse(run: tuple[str, ...]) -> str:
        return run_driver(*run, gateway=gateway, folder=tmp_path / "-".join(run), python=python)

    with ThreadPoolExecutor(N_AT_ONCE) as people:
        for printed in people.map(converse, RUNS):
            assert printed.count("Answer number") == 3

    sessions = pool()
    # AutoGen offers no tools when it thinks over what one said.
    assert sorted(len(session.chains) for session in sessions) == [1] * (len(RUNS) - 1) + [2]
    for session in sessions:
        check_conversation(session, n_chains=len(session.chains))
        assert session.side_calls == []
