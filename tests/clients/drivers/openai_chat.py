"""A multi-turn conversation with a tool by the `openai` package on chat completions; the history is its own to keep."""

import json
import os
import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

NUMBER = {"type": "integer"}
ADD: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
    },
}

client = OpenAI(base_url=os.environ["CLAW_URL"] + "/v1", api_key=os.environ["CLAW_API_KEY"])
model = os.environ["CLAW_AGENT_MODEL"]


def answer(messages: list[ChatCompletionMessageParam]) -> str:
    """Go on until the model talks."""
    while True:
        completion = client.chat.completions.create(model=model, messages=messages, tools=[ADD])
        message = completion.choices[0].message
        messages.append(message.to_dict())  # type: ignore[arg-type] # as the package's users send it back
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            assert call.type == "function"
            numbers = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})


def main(turns: list[str]) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "You add numbers."}]
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        sys.stdout.write(answer(messages) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
