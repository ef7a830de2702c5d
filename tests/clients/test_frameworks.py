"""Python frameworks, each in an environment of its own, through a conversation with a tool."""

from pathlib import Path

import pytest

from tests.clients.conftest import ReadPool
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import install_python
from tests.clients.pool import check_conversation
from tests.clients.running import run_driver

LANGGRAPH = ("langchain==1.5.2", "langchain-openai==1.7.4", "langgraph==1.2.24")
PINS: dict[str, tuple[str, ...]] = {
    "langgraph": LANGGRAPH,
    "openai-agents": ("openai-agents==0.24.0",),
    "pydantic-ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "litellm": ("litellm==1.110.2",),
}
RUNS = [
    ("langgraph", "langgraph_agent", ()),
    ("openai-agents", "openai_agents_session", ("responses",)),
    ("openai-agents", "openai_agents_session", ("chat_completions",)),
    ("pydantic-ai", "pydantic_ai_agent", ("chat",)),
    ("pydantic-ai", "pydantic_ai_agent", ("responses",)),
    ("litellm", "litellm_loop", ("openai",)),
    ("litellm", "litellm_loop", ("anthropic",)),
]

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("name", "driver", "arguments"), RUNS)
def test_a_conversation_with_a_tool_is_one_chain(
    gateway: GatewayProcess, pool: ReadPool, tmp_path: Path, name: str, driver: str, arguments: tuple[str, ...]
) -> None:
    python = install_python(name, *PINS[name])

    printed = run_driver(driver, *arguments, gateway=gateway, folder=tmp_path, python=python)

    assert printed.count("Answer number") == 3
    (session,) = pool()
    check_conversation(session)
    assert session.side_calls == []
