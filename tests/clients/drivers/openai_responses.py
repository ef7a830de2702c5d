"""The same by `openai` on responses: the gateway keeps the history, each call names the answer before."""

import json
import os
import sys

from openai import OpenAI
from openai.types.responses import FunctionToolParam, ResponseInputParam

NUMBER = {"type": "integer"}
ADD: FunctionToolParam = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
    "strict": False,
}

client = OpenAI(base_url=os.environ["CLAW_URL"] + "/v1", api_key=os.environ["CLAW_API_KEY"])
model = os.environ["CLAW_AGENT_MODEL"]


def answer(items: ResponseInputParam, previous: str | None) -> str:
    """Go on until the model talks; return the id of the last answer."""
    while True:
        response = client.responses.create(
            model=model, instructions="You add numbers.", input=items, tools=[ADD], previous_response_id=previous
        )
        previous, items = response.id, []
        for item in response.output:
            if item.type == "function_call":
                numbers = json.loads(item.arguments)
                total = str(numbers["a"] + numbers["b"])
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": total})
        if not items:
            sys.stdout.write(response.output_text + "\n")
            return response.id


def main(turns: list[str]) -> None:
    previous: str | None = None
    for turn in turns:
        previous = answer([{"role": "user", "content": turn}], previous)


if __name__ == "__main__":
    main(sys.argv[1:])
