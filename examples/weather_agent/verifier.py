"""How good an episode was: 0 to 1, half for the tool call, half for the sentence that reports its result.

Pure: looks only at what was said. Partial marks are steps on the way that a weak model can climb.
"""

import json
import re

from openai.types.chat import ChatCompletionMessage

from weather_agent.agent import Episode
from weather_agent.tasks import Task

CALL_WEIGHT = 0.5
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "<|im_start|>")


def score(episode: Episode) -> float:
    """Return the reward of the whole episode."""
    call = score_call(episode.first, task=episode.task)
    answer = score_answer(episode.final, task=episode.task, is_cut=episode.is_final_cut)
    return CALL_WEIGHT * call + (1 - CALL_WEIGHT) * answer


def score_call(message: ChatCompletionMessage, *, task: Task) -> float:
    """Return 0 without a call, 0.1 for a tag without a call in it, 0.2 for some call, 0.4 for the right tool, 0.8 for the
    right city too, 1.0 if nothing else was said. A wrong tool earns nothing for its arguments: it would drift to one tool.
    """
    text = message.content or ""
    if not message.tool_calls:
        return 0.1 if "<tool_call>" in text else 0.0
    call = message.tool_calls[0]
    if call.type != "function" or call.function.name != task.tool:
        return 0.2
    if _read_arguments(call.function.arguments) != {"city": task.city}:
        return 0.4
    return 1.0 if len(message.tool_calls) == 1 and not text.strip() else 0.8


def score_answer(message: ChatCompletionMessage | None, *, task: Task, is_cut: bool) -> float:
    """Return 1 for a sentence with the whole result, part of it for part; 0 for another call or an echo of the markup."""
    text = (message.content or "") if message else ""
    if message is None or message.tool_calls or any(tag in text for tag in MARKUP):
        return 0.0
    wanted = [part for part in re.split(r" degrees and ", task.result) if part]
    found = sum(bool(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text, re.IGNORECASE)) for part in wanted)
    marks = found / len(wanted)
    is_sentence = len(text.split()) > len(task.result.split())
    return marks * (1.0 if is_sentence and not is_cut else 0.5)


def _read_arguments(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
