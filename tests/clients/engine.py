"""A fake engine that plays a model with a will: asked to use a tool it calls one that the client has, asked for its
helper it starts a sub-agent, asked for a story it fills the context, asked to sum up it does so in the form that agents
demand; else it talks.

Each request is decided by itself, so several sessions may talk at once. No two answers are alike. A prompt has as many
ids as a real one would have, about, and begins as the one before it did: clients compact by what `usage` says.
"""

import asyncio
import itertools
import json
import zlib
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
DELEGATING = "ask your helper"
DELEGATION = f"Please {DELEGATING}."
KNOWN_HELPERS: dict[str, Json] = {
    "Agent": {"description": "greet", "prompt": TURNS[0], "subagent_type": "general-purpose"},
    "tool_call": {"id": "sessions_spawn", "args": {"task": TURNS[0], "label": "helper"}},
    "multi_agent_v1__spawn_agent": {"message": TURNS[0]},
}
HELPER_S = 20
TELLING = "tell a long story"
STORY = "Please tell a long story."
_CHAPTER = " Once there was an otter." * 100
_N_CHAPTERS = 24  # 60,000 characters, 15,000 ids in the next prompt
_HEADINGS = ("Decisions", "Open TODOs", "Constraints/Rules", "Pending user asks", "Exact identifiers")
SUMMARY = "<summary>" + "".join(f"\n## {heading}\nNone.\n" for heading in _HEADINGS) + "</summary>"
_SUMMING_UP = ("context summarization assistant", "CRITICAL: Respond with TEXT ONLY", "CONTEXT CHECKPOINT COMPACTION")
_OPENCLAW_TAIL = "BEGIN_OPENCLAW_INTERNAL_CONTEXT"  # a user message that nobody typed


class ToolUsingEngine(FakeEngine):
    """`with ToolUsingEngine() as engine:` then `engine.calls` holds what was sampled, for whom."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of_all = Script()
        self._of_this_request: ContextVar[Script] = ContextVar("script")
        self._is_helper_answered = False
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
        body = await request.json()
        self._of_this_request.set(self._write_script(body))
        has_delegated = any(DELEGATION in str(message.get("content")) for message in body.get("messages", ()))
        if has_delegated and not read_what_is_asked(body["messages"]):
            await self._wait_for_helper()
        answer = await super()._answer(request, render=render)
        self._is_helper_answered |= not has_delegated
        return answer

    async def _wait_for_helper(self) -> None:
        """Let the helper have its answer first: some programs end once they have one, and end their helper."""
        for _ in range(HELPER_S * 20):
            if self._is_helper_answered:
                return
            await asyncio.sleep(0.05)

    def _write_script(self, body: Json) -> Script:
        script = Script(pieces=["Answer", " number", f" {next(self._numbers)}", "."], max_prompt_chars=10_000_000)
        messages, tools = body.get("messages", ()), body.get("tools") or ()
        asked = read_what_is_asked(messages)
        if any(text in f"{messages[0]['content']}{asked}" for text in _SUMMING_UP):
            script.pieces = [*script.pieces, "\n", SUMMARY]
        elif TELLING in asked:
            script.pieces += [_CHAPTER] * _N_CHAPTERS
        elif ASKING in asked:
            script.tool = choose_tool(tools, known=KNOWN_TOOLS)
        elif DELEGATING in asked:
            script.tool = choose_tool(tools, known=KNOWN_HELPERS)
        return script

    def _sample(self, body: Json, headers: dict[str, str]) -> EngineCall:
        call = super()._sample(body, headers)
        call.prompt_token_ids = tokenize(body)
        return call


def read_what_is_asked(messages: Sequence[Json]) -> str:
    """Return the last that a person typed, "" where something was answered to it already."""
    for message in reversed(messages):
        text = str(message.get("content"))
        if message["role"] in {"system", "developer"} or _OPENCLAW_TAIL in text:
            continue
        return text if message["role"] == "user" else ""
    return ""


def choose_tool(tools: Sequence[Json], *, known: dict[str, Json]) -> Json | None:
    """Return a call of the first known tool, None where the client offers none."""
    names = [tool["function"]["name"] for tool in tools]
    return next(({"name": name, "arguments": known[name]} for name in names if name in known), None)


def tokenize(body: Json) -> list[int]:
    """Return one id for every four characters of the prompt."""
    text = json.dumps(body.get("tools")) + "".join(json.dumps(message) for message in body.get("messages", ()))
    blocks = (text[start : start + 4].encode() for start in range(0, len(text), 4))
    return [3 + zlib.crc32(block) % 48_997 for block in blocks]
