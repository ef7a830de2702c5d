"""Claude Code as the tests run it: headless, each turn of its session in a process of its own, or in a terminal."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from tests.clients.configs import write_claude_code
from tests.clients.conftest import MODEL
from tests.clients.gateway import GatewayProcess
from tests.clients.installing import find_node, require_npm
from tests.clients.running import TIMEOUT_S, Place
from tests.clients.terminal import Terminal, open_terminal

PACKAGE = "@anthropic-ai/claude-code@2.1.332"
TOOLS = ("--allowedTools", "Bash,Agent")
ROOT_ENV = {"IS_SANDBOX": "1"}  # it refuses to work for the root user otherwise
NO_TITLES = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"
QUIET = {"DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1"}  # the rest of it
_IS_CUT = "output token maximum"
NOTHING: Mapping[str, str] = MappingProxyType({})


class ClaudeCode:
    """`say` runs it over one turn of its session. `further` stands in its environment."""

    def __init__(self, folder: Path, *, gateway: GatewayProcess, further: Mapping[str, str] = NOTHING) -> None:
        self._program = require_npm("claude-code", PACKAGE) / "claude"
        env = ROOT_ENV | write_claude_code(url=gateway.url, key=gateway.secret, model=MODEL)
        self._place = Place.make(folder, env=env | dict(further), path=str(find_node()))
        self.session_id = str(uuid4())
        self._which = "--session-id"

    def open_window(self) -> AbstractContextManager[Terminal]:
        """Run it in a terminal, as one who has used it before."""
        project = {"hasTrustDialogAccepted": True, "projectOnboardingSeenCount": 1}
        known = {"hasCompletedOnboarding": True, "theme": "dark", "projects": {str(self._place.work): project}}
        (self._place.home / ".claude.json").write_text(json.dumps(known))
        env = {name: value for name, value in self._place.env.items() if name != NO_TITLES} | QUIET
        return open_terminal([self._program, self._which, self.session_id, *TOOLS], place=replace(self._place, env=env))

    def say(self, text: str, *flags: str, timeout_s: float = TIMEOUT_S, may_be_cut: bool = False) -> str:
        """Return what it printed. `may_be_cut`: the model may talk on to the limit, an error to Claude Code."""
        command: list[str | Path] = [self._program, "-p", text, self._which, self.session_id, *TOOLS, *flags]
        self._which = "--resume"
        try:
            return self._place.run(command, timeout_s=timeout_s)
        except AssertionError as error:
            if may_be_cut and _IS_CUT in str(error):
                return ""
            raise
