"""The pages in `docs/agents/` show what the tests ran."""

import re
import shlex
from pathlib import Path

import pytest

from tests.clients import claude_code, configs, installing, test_codex
from tests.clients.gateway import ROOT

PAGES = ROOT / "docs" / "agents"
DRIVERS = Path(__file__).parent / "drivers"
URL, KEY, MODEL = "http://127.0.0.1:8000", "claw-…", "default"
CONFIGS = {
    "codex": configs.write_codex(url=URL, model=MODEL),
    "claude-code": configs.write_exports(configs.write_claude_code(url=URL, key=KEY, model=MODEL)),
    "openclaw": configs.write_openclaw(url=URL, key=KEY, model=MODEL),
}
PROGRAMS = {
    "openai-sdk": ("openai_chat", "openai_responses"),
    "anthropic-sdk": ("anthropic_messages",),
    "langgraph": ("langgraph_agent",),
    "openai-agents": ("openai_agents_session",),
    "pydantic-ai": ("pydantic_ai_agent",),
    "litellm": ("litellm_loop",),
    "autogen": ("autogen_agent",),
}
PACKAGES = {"codex": test_codex.PACKAGE, "claude-code": claude_code.PACKAGE, "openclaw": installing.OPENCLAW}
PINNED = ("clients.in", "web.txt", "dev.txt")
PINS = {line.split()[0] for name in PINNED for line in (ROOT / "requirements" / name).read_text().splitlines() if line}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_blocks(page: str, *languages: str) -> list[str]:
    """Return the code of a page in these languages."""
    text = (PAGES / f"{page}.md").read_text()
    return [code for language, code in _BLOCK.findall(text) if language in languages]


@pytest.mark.parametrize("page", CONFIGS)
def test_a_page_shows_the_configuration_that_was_tested(page: str) -> None:
    assert read_blocks(page, "toml", "sh", "json") == [CONFIGS[page]]


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_shows_the_programs_that_were_tested(page: str) -> None:
    shown = read_blocks(page, "python")
    assert len(shown) == len(PROGRAMS[page])
    for code, driver in zip(shown, PROGRAMS[page], strict=True):
        assert (DRIVERS / f"{driver}.py").read_text().endswith(f'"""\n\n{code}')


@pytest.mark.parametrize("page", CONFIGS)
def test_a_page_says_how_to_install_what_was_tested(page: str) -> None:
    assert f"`npm install -g {PACKAGES[page]}`" in (PAGES / f"{page}.md").read_text()


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_says_what_its_programs_need_and_how_to_run_them(page: str) -> None:
    [shell] = read_blocks(page, "sh")
    needed = shlex.split(next(line for line in shell.splitlines() if line.startswith("pip install ")))[2:]
    assert needed
    assert set(needed) <= PINS
    for driver in PROGRAMS[page]:
        assert f"(`{driver}.py`, run by `python {driver}.py " in (PAGES / f"{page}.md").read_text()


def test_every_driver_has_a_page() -> None:
    shown = {driver for drivers in PROGRAMS.values() for driver in drivers}
    assert shown == {path.stem for path in DRIVERS.glob("*.py")} - {"__init__"}
