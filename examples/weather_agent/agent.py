"""The agent: asks the model, runs the tool it calls, hands the result back, and returns what was said.

Written with the unmodified `openai` package. All it is given of the platform is a client with a base URL and a key; it
knows nothing of rewards or training.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam

from weather_agent.tasks import QUESTIONS, Task, ToolName

MAX_CALL_TOKENS = 36
MAX_ANSWER_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One task played. `first` and `final` are the model's two answers (`final` is None if it called no tool)."""

    task: Task
    first: ChatCompletionMessage
    final: ChatCompletionMessage | None
    is_final_cut: bool
    tool_result: str | None
    response_ids: tuple[str, ...]
    messages: tuple[ChatCompletionMessageParam, ...]


def _describe_tool(name: ToolName) -> ChatCompletionToolParam:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": city}}


TOOLS = [_describe_tool(name) for name in QUESTIONS]
SYSTEM = "Call one tool, then answer with its result in one short sentence."


def _ask(question: str, *, tool: ToolName, city: str) -> list[ChatCompletionMessageParam]:
    """Return a question and the call that it wants, as past messages."""
    return [
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": f"example{city.lower()}",
                    "type": "function",
                    "function": {"name": tool, "arguments": json.dumps({"city": city})},
                }
            ],
        },
    ]


# Past messages to imitate: without them a model this small never finds the format, and there is nothing to reinforce. The
# lone calls at the end keep it from answering at once, in the manner of the last answer it saw.
EXAMPLES: list[ChatCompletionMessageParam] = [
    *_ask("What time is it in Madras?", tool="get_time", city="Madras"),
    {"role": "tool", "tool_call_id": "examplemadras", "content": "17:20"},
    {"role": "assistant", "content": "It is 17:20 in Madras."},
    *_ask("Is it cold in Paris?", tool="get_weather", city="Paris"),
    *_ask("Is it late in Bonn?", tool="get_time", city="Bonn"),
]


async def play(client: AsyncOpenAI, task: Task, *, model: str, temperature: float, extra: dict[str, Any] | None = None) -> Episode:
    """Play `task` with at most two model calls."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SYSTEM},
        *EXAMPLES,
        {"role": "user", "content": task.question},
    ]
    first = await client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, temperature=temperature, max_tokens=MAX_CALL_TOKENS, extra_body=extra
    )
    said = first.choices[0].message
    messages.append(cast("ChatCompletionMessageParam", said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})))
    if not said.tool_calls:
        return Episode(task=task, first=said, final=None, is_final_cut=False, tool_result=None, response_ids=(first.id,), messages=tuple(messages))
    results = [run_tool(task, call.function.name, call.function.arguments) for call in said.tool_calls]
    for call, result in zip(said.tool_calls, results, strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = await client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, temperature=temperature, max_tokens=MAX_ANSWER_TOKENS, extra_body=extra
    )
    final = second.choices[0].message
    messages.append(cast("ChatCompletionMessageParam", final.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})))
    return Episode(task=task, first=said, final=final, is_final_cut=second.choices[0].finish_reason == "length", tool_result=results[0], response_ids=(first.id, second.id), messages=tuple(messages))


def run_tool(task: Task, name: str, arguments: str) -> str:
    """Return what the tool answers; a call that makes no sense gets an error in words, as from any tool."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return "error: arguments are not JSON"
    city = given.get("city") if isinstance(given, dict) else None
    if name not in QUESTIONS or not isinstance(city, str):
        return "error: no such tool or no city"
    return task.answer_tool(cast("ToolName", name), city=city)
