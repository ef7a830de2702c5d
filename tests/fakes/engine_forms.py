"""The fake engine's other sides: answers in the form of /v1/completions, embeddings, refusals of a chat template."""

import base64
import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

Json = dict[str, Any]


class Call(Protocol):
    """What is read of the engine's call."""

    body: Json
    prompt_token_ids: list[int]


def count_prompts(prompt: Any) -> int:
    """Return how many prompts a request holds: a list of numbers is one."""
    is_many = isinstance(prompt, list) and not all(isinstance(part, int) for part in prompt)
    return len(prompt) if is_many else 1


def render_completion(answer: Json, call: Call) -> Json:
    """Return a chat answer, whole or a chunk, as vLLM gives it for a text prompt."""
    head = {name: value for name, value in answer.items() if name not in {"choices", "prompt_token_ids", "prompt_text"}}
    choices = []
    for choice in answer["choices"]:
        said = choice.get("delta", choice.get("message")) or {}
        rendered = {name: value for name, value in choice.items() if name not in {"delta", "message"}}
        rendered |= {"text": said.get("content") or "", "logprobs": _render_logprobs(choice["logprobs"], call)}
        if "prompt_token_ids" in answer:
            rendered["prompt_token_ids"] = answer["prompt_token_ids"]
        choices.append(rendered)
    return {**head, "id": "cmpl-a244df0d46482a10", "object": "text_completion", "choices": choices}


def _render_logprobs(logprobs: Json | None, call: Call) -> Json | None:
    if logprobs is None:
        return None
    items = logprobs["content"]
    n_others = call.body["logprobs"]
    return {
        "text_offset": [sum(len(item["token"]) for item in items[:at]) for at in range(len(items))],
        "token_logprobs": [item["logprob"] for item in items],
        "tokens": [item["token"] for item in items],
        "top_logprobs": [
            {item["token"]: item["logprob"], **{f"other{rank}": -9.0 for rank in range(n_others)}} for item in items
        ],
    }


def embed(body: Json, *, n_dimensions: int, speaks_base64: bool) -> Json:
    """Return a vector for each input, its numbers exact in 32 bits."""
    given = body["input"]
    is_many = isinstance(given, list) and not all(isinstance(part, int) for part in given)
    vectors = [
        [index + place / 4 for place in range(body.get("dimensions") or n_dimensions)]
        for index in range(len(given) if is_many else 1)
    ]
    is_base64 = speaks_base64 and body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _encode(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": None}
    head = {"id": "embd-1", "object": "list", "created": 1796099164, "model": body["model"]}
    return {**head, "data": data, "usage": usage}


def _encode(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def find_field_fault(messages: Sequence[Json]) -> str:
    """Return what vLLM says of a message whose `name` is none, "" when all are well: it lists all types of messages."""
    for place, message in enumerate(messages):
        if not isinstance(message.get("name", ""), str):
            where = f"body.messages.{place}.ChatCompletionSystemMessageParam.name"
            error = {"type": "string_type", "loc": where, "msg": "Input should be a valid string"}
            return f"2 validation errors:\n  {error}"
    return ""


def find_template_fault(messages: Sequence[Json], template: str) -> str:
    """Return what vLLM says when a chat template cannot render these messages, "" when it can.

    Every template needs the arguments of calls as objects. `template`: "" takes all roles anywhere; "system first",
    "turns" (as Gemma 3) and "no system" (as Gemma 1) each insist on more than the one before; "none" takes nothing.
    """
    for message in messages:
        for call in message.get("tool_calls") or ():
            try:
                is_object = isinstance(json.loads(call["function"]["arguments"] or "{}"), dict)
            except json.JSONDecodeError as error:
                return str(error)
            if not is_object:
                return "Can only get item pairs from a mapping."
    roles = ["system" if message["role"] == "developer" else message["role"] for message in messages]
    if template == "no system" and "system" in roles:
        return "System role not supported"
    if template and "system" in roles[1:]:
        return "System message must be at the beginning."
    is_turning = template != "none" and all(
        first != second or first not in ("user", "assistant") for first, second in pairwise(roles)
    )
    if template in ("turns", "no system", "none") and not is_turning:
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return ""
