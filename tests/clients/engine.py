"""A fake engine that plays a model with a will: asked to use a tool it calls one that the client has, else it talks.

Each request is decided by itself, so several sessions may talk at once. No two answers are alike.
"""

import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from tests.fakes.engine import EngineCall, FakeEngine, Script

Json = dict[str, Any]
ASKING = "use your tool"
TURNS = (f"Please {ASKING}.", f"And {ASKING} again.", "Thanks, that is all.")
"""What a person says to each client: two turns with a tool, one without."""
CALLS_A_TURN = (2, 2, 1)
TOOL_OUTPUT = "otter-was-here"
COMMAND = f"echo {TOOL_OUTPUT}"
KNOWN_TOOLS: dict[str, Json] = {
    "add": {"a": 2, "b": 3},
    "exec": {"command": COMMAND},
    "exec_command": {"cmd": COMMAND},
    "shell": {"command": ["bash", "-lc", COMMAND]},
    "Bash": {"command": COMMAND, "description": "Say who was here"},
}
_OPENCLAW_TAIL = "BEGIN_OPENCLAW_INTERNAL_CONTEXT"  # a user message that nobody typed


class ToolUsingEngine(FakeEngine):
    """`with ToolUsingEngine() as engine:` then `engine.calls` holds what was sampled, for whom."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of_all = Script()
        self._of_this_request: ContextVar[Script] = ContextVar("script")
        super().__init__()

    @property
    def script(self) -> Script:
        """The script of the request that is being answered."""
        return self._of_this_request.get(self._of_all)

    @script.setter
    def script(self, script: Script) -> None:
        self._of_all = script

    async def _answer(
        self, request: web.Request, *, render: Callable[[Json, EngineCall], Json] = lambda answer, _call: answer
    ) -> web.StreamResponse:
        self._of_this_request.set(self._write_script(await request.json()))
        return await super()._answer(request, render=render)

    def _write_script(self, body: Json) -> Script:
        script = Script(pieces=["Answer", " number", f" {next(self._numbers)}", "."], max_prompt_chars=10_000_000)
        if is_asking_for_a_tool(body.get("messages", ())):
            script.tool = choose_tool(body.get("tools") or ())
        return script


def is_asking_for_a_tool(messages: Sequence[Json]) -> bool:
    """Say whether the last that a person typed asks for a tool, and nothing was answered to it yet."""
    for message in reversed(messages):
        text = str(message.get("content"))
        if message["role"] in {"system", "developer"} or _OPENCLAW_TAIL in text:
            continue
        return message["role"] == "user" and ASKING in text
    return False


def choose_tool(tools: Sequence[Json]) -> Json | None:
    """Return a call of the first known tool, None where the client offers none."""
    names = [tool["function"]["name"] for tool in tools]
    return next(({"name": name, "arguments": KNOWN_TOOLS[name]} for name in names if name in KNOWN_TOOLS), None)
