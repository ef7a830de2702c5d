"""An agent of pydantic-ai that hands its history on. The first argument is the API: responses or chat."""

import os
import sys

from pydantic_ai import Agent, ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


provider = OpenAIProvider(base_url=os.environ["CLAW_URL"] + "/v1", api_key=os.environ["CLAW_API_KEY"])
models = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}


def main(api: str, turns: list[str]) -> None:
    model = models[api](os.environ["CLAW_AGENT_MODEL"], provider=provider)
    agent = Agent(model, instructions="You add numbers.", tools=[add])
    history: list[ModelMessage] = []
    for turn in turns:
        result = agent.run_sync(turn, message_history=history)
        history = result.all_messages()
        sys.stdout.write(result.output + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
