"""Claude Code as the tests run it: headless, each turn of its session in a process of its own."""

from pathlib import Path
from uuid import uuid4

from tests.clients.configs import write_claude_code
from tests.clients.conftest import MODEL
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import find_node, require_npm
from tests.clients.running import Place

PACKAGE = "@anthropic-ai/claude-code@2.1.332"
TOOLS = ("--allowedTools", "Bash,Agent")
ROOT_ENV = {"IS_SANDBOX": "1"}  # it refuses to work for the root user otherwise


class ClaudeCode:
    """`say` runs it over one turn of its session."""

    def __init__(self, folder: Path, *, gateway: GatewayProcess) -> None:
        self._program = require_npm("claude-code", PACKAGE) / "claude"
        env = ROOT_ENV | write_claude_code(url=gateway.url, key=gateway.secret, model=MODEL)
        self._place = Place.make(folder, env=env, path=str(find_node()))
        self.session_id = str(uuid4())
        self._which = "--session-id"

    def say(self, text: str, *further: str) -> str:
        """Return what it printed. `further` are flags of this turn."""
        printed = self._place.run([self._program, "-p", text, self._which, self.session_id, *TOOLS, *further])
        self._which = "--resume"
        return printed
