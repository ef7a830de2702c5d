"""A loop over the `litellm` package. The first argument is how it speaks: openai (chat) or anthropic (messages)."""

import json
import os
import sys
from typing import Any

import litellm

NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": PARAMETERS}}
url = os.environ["CLAW_URL"]
base_urls = {"openai": f"{url}/v1", "anthropic": url}


def answer(provider: str, messages: list[Any]) -> str:
    """Go on until the model talks."""
    while True:
        completion = litellm.completion(
            model=f"{provider}/{os.environ['CLAW_AGENT_MODEL']}",
            api_base=base_urls[provider],
            api_key=os.environ["CLAW_API_KEY"],
            messages=messages,
            tools=[ADD],
        )
        message = completion.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            numbers = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(numbers["a"] + numbers["b"])})


def main(provider: str, turns: list[str]) -> None:
    messages: list[Any] = [{"role": "system", "content": "You add numbers."}]
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        sys.stdout.write(answer(provider, messages) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
