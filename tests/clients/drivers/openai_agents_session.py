"""An agent of the OpenAI Agents SDK with a session of its own.

The first argument is the API: responses or chat_completions.
"""

import asyncio
import os
import sys

from agents import (
    Agent,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


client = AsyncOpenAI(base_url=os.environ["CLAW_URL"] + "/v1", api_key=os.environ["CLAW_API_KEY"])
set_default_openai_client(client, use_for_tracing=False)
set_tracing_disabled(True)
agent = Agent(
    name="calculator",
    instructions="You add numbers.",
    model=os.environ["CLAW_AGENT_MODEL"],
    tools=[function_tool(add)],
)


async def main(api: str, turns: list[str]) -> None:
    set_default_openai_api(api)
    session = SQLiteSession("otters")
    for turn in turns:
        result = Runner.run_streamed(agent, turn, session=session)
        async for _ in result.stream_events():
            pass
        sys.stdout.write(f"{result.final_output}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
