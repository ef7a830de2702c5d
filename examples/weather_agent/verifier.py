"""How good an episode was: 0 to 1, half for the tool call, half for the sentence that reports its result.

Pure: looks only at what was said. Partial marks are steps on the way that a weak model can climb.
"""

import json
import re

from openai.types.chat import ChatCompletionMessage

from examples.weather_agent.agent import Episode
from examples.weather_agent.tasks import Task

CALL_WEIGHT = 0.5
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "<|im_start|>")


def score(episode: Episode) -> float:
    """Return the reward of the whole episode."""
    call = score_call(episode.first, task=episode.task)
    answer = score_answer(episode.final, task=episode.task, is_cut=episode.is_final_cut)
    return CALL_WEIGHT * call + (1 - CALL_WEIGHT) * answer


def score_call(message: ChatCompletionMessage, *, task: Task) -> float:
    """Return the marks for the tool call.

    0 without a call, 0.1 for a tag without a call in it, 0.2 for some call, 0.4 for the right tool, 0.8 for the right
    city too, 1.0 if nothing else was said. A wrong tool earns nothing for its arguments: the policy would drift to one.
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
    """Return the marks for the sentence: 1 with the whole result in it, part of it for part of the result.

    Half for a bare result or a sentence that was cut off; 0 for another call, or for markup: a model that repeats the
    <tool_response> it was given has understood nothing, yet every fact is in it.
    """
    text = (message.content or "") if message else ""
    if message is None or message.tool_calls or any(tag in text for tag in MARKUP):
        return 0.0
    facts = task.result.split(" degrees and ")  # a number and a sky; or one time of day
    marks = sum(_names(fact, text=text) for fact in facts) / len(facts)
    is_sentence = len(text.split()) > len(task.result.split())
    return marks if is_sentence and not is_cut else marks / 2


def _names(fact: str, *, text: str) -> bool:
    """Return whether `text` names `fact` as a whole word: 8 is not found in 18, nor 07:36 in 07:365."""
    return re.search(rf"(?<![\w:]){re.escape(fact)}(?![\w:])", text, re.IGNORECASE) is not None


def _read_arguments(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
