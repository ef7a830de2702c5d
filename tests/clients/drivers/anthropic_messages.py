"""A multi-turn conversation with a tool by the `anthropic` package, streamed; the history is its own to keep."""

import os
import sys
from typing import cast

from anthropic import Anthropic
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

NUMBER = {"type": "integer"}
ADD: ToolParam = {
    "name": "add",
    "description": "Add two numbers",
    "input_schema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
}

client = Anthropic(base_url=os.environ["CLAW_URL"], api_key=os.environ["CLAW_API_KEY"])
model = os.environ["CLAW_AGENT_MODEL"]


def answer(messages: list[MessageParam]) -> str:
    """Go on until the model talks."""
    while True:
        with client.messages.stream(
            model=model, max_tokens=500, system="You add numbers.", messages=messages, tools=[ADD]
        ) as stream:
            message = stream.get_final_message()
        messages.append(message.to_param())
        results: list[ToolResultBlockParam] = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": str(sum(cast("dict[str, int]", block.input).values())),
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        if not results:
            return "".join(block.text for block in message.content if block.type == "text")
        messages.append({"role": "user", "content": results})


def main(turns: list[str]) -> None:
    messages: list[MessageParam] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        sys.stdout.write(answer(messages) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
