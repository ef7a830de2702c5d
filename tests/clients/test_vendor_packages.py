"""The `openai` and `anthropic` packages, each in a process of its own, through a conversation with a tool.

These run with every test run; `tests/apps/gateway/test_*_package.py` has their finer points.
"""

from pathlib import Path

import pytest

from tests.clients.conftest import ReadPool
from tests.clients.gateway import GatewayProcess
from tests.clients.pool import check_conversation
from tests.clients.running import run_driver


@pytest.mark.parametrize("driver", ["openai_chat", "openai_responses", "anthropic_messages"])
def test_a_conversation_with_a_tool_is_one_chain(
    gateway: GatewayProcess, pool: ReadPool, tmp_path: Path, driver: str
) -> None:
    printed = run_driver(driver, gateway=gateway, folder=tmp_path)

    assert printed.count("Answer number") == 3
    (session,) = pool()
    check_conversation(session)
    assert session.side_calls == []
