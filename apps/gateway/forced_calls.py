"""Holds a call that the client insists on to its tool's schema.

Where `tool_choice` is `required` or names a tool, vLLM makes the model call one, but lets it write any JSON for the
arguments unless the tool is `strict`. A client that insists on a call reads its arguments without looking at them, so
tools that say nothing are `strict` then; one that says `"strict": false` gets what it asked for. Such an answer is not
sampled freely either way, and the pool marks it so.
"""

import re
from collections.abc import Mapping
from typing import Any

from apps.gateway.dialect import Json

STRICT = "tools.strict"  # in what was mended
_NO_GRAMMAR = re.compile(rb"structural tag|grammar")  # how vLLM's backends refuse a schema that makes none


def hold_to_schemas(body: Mapping[str, Any]) -> list[Json] | None:
    """Return the tools as the engine is to have them, None where they stay as they are."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not tools or choice in (None, "auto", "none"):
        return None
    held = [_hold(tool) for tool in tools]
    return held if held != tools else None


def is_beyond_grammar(status: int, refusal: bytes) -> bool:
    """Whether the engine could not hold a call to its schema, and would take the same request without."""
    return status == 400 and _NO_GRAMMAR.search(refusal) is not None


def _hold(tool: Json) -> Json:
    function = tool["function"]
    if function.get("strict") is not None:
        return tool
    return {**tool, "function": {**function, "strict": True}}
