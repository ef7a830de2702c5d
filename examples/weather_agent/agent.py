"""The agent: asks the model, runs the tool it calls, hands the result back, and returns what was said.

Written with the unmodified `openai` package. All it is given of the platform is a client with a base URL and a key; it
knows nothing of rewards or training.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam

from examples.weather_agent.tasks import QUESTIONS, Task, ToolName

MAX_CALL_TOKENS = 36
MAX_ANSWER_TOKENS = 48
SYSTEM = "Call one tool, then answer with its result in one short sentence."

Message = ChatCompletionMessageParam


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One task played: the whole conversation, and the model's answers in it.

    `final` is None if the first answer called no tool. `is_final_cut`: the token limit ended it. `response_ids` are the
    ids of the model's answers, by which a platform can be told what they were worth.
    """

    task: Task
    messages: tuple[Message, ...]
    first: ChatCompletionMessage
    final: ChatCompletionMessage | None
    is_final_cut: bool
    response_ids: tuple[str, ...]


def _describe_tool(name: ToolName) -> ChatCompletionToolParam:
    city: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": city}}


def _show_call(question: str, *, tool: ToolName, city: str) -> list[Message]:
    """Return a question and the call that it wants, as past messages."""
    function: Any = {"name": tool, "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"example{city.lower()}", "type": "function", "function": function}],
        },
    ]


TOOLS = [_describe_tool(name) for name in QUESTIONS]
# Past messages to imitate: without them a model this small never finds the format, and there is nothing to reinforce.
# The lone call comes last because it follows what it saw last: after a whole example it answers without a call.
EXAMPLES: tuple[Message, ...] = (
    *_show_call("What time is it in Madras?", tool="get_time", city="Madras"),
    {"role": "tool", "tool_call_id": "examplemadras", "content": "17:20"},
    {"role": "assistant", "content": "It is 17:20 in Madras."},
    *_show_call("Is it cold in Paris?", tool="get_weather", city="Paris"),
)


async def play(client: AsyncOpenAI, task: Task, *, model: str, temperature: float) -> Episode:
    """Play `task` with at most two model calls. Raises what the `openai` package raises."""
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        *EXAMPLES,
        {"role": "user", "content": task.question},
    ]

    async def ask(*, max_tokens: int) -> ChatCompletion:
        answer = await client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, temperature=temperature, max_tokens=max_tokens
        )
        messages.append(_as_past(answer.choices[0].message))
        return answer

    answers = [await ask(max_tokens=MAX_CALL_TOKENS)]
    first = answers[0].choices[0].message
    if first.tool_calls:
        messages.extend(answer_calls(task, first))
        answers.append(await ask(max_tokens=MAX_ANSWER_TOKENS))
    last = answers[-1].choices[0]
    return Episode(
        task=task,
        messages=tuple(messages),
        first=first,
        final=last.message if len(answers) > 1 else None,
        is_final_cut=last.finish_reason == "length",
        response_ids=tuple(answer.id for answer in answers),
    )


def _as_past(message: ChatCompletionMessage) -> Message:
    """Return the model's answer as the message that the next request repeats."""
    return cast("Message", message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))


def answer_calls(task: Task, message: ChatCompletionMessage) -> list[Message]:
    """Return one tool message for each call in `message`."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": _run_tool(task, call.function.name, call.function.arguments),
        }
        for call in message.tool_calls or []
        if call.type == "function"
    ]


def _run_tool(task: Task, name: str, arguments: str) -> str:
    """Return what the tool says; a call that makes no sense gets an error in words, as from any tool."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return "error: the arguments are not JSON"
    city = given.get("city") if isinstance(given, dict) else None
    if name not in QUESTIONS:
        return "error: no such tool"
    if not isinstance(city, str):
        return "error: no city given"
    return task.answer_tool(name, city=city)
