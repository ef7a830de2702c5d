"""An agent of AutoGen, which keeps the conversation from task to task and thinks over what its tools say."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = OpenAIChatCompletionClient(
    model=os.environ["CLAW_AGENT_MODEL"],
    base_url=os.environ["CLAW_URL"] + "/v1",
    api_key=os.environ["CLAW_API_KEY"],
    model_info={
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    },
)
agent = AssistantAgent("calculator", model, tools=[add], system_message="You add numbers.", reflect_on_tool_use=True)


async def main(turns: list[str]) -> None:
    for turn in turns:
        result = await agent.run(task=turn)
        sys.stdout.write(f"{result.messages[-1].to_text()}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
