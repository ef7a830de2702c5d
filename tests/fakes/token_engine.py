"""The fake engine with vLLM's `/v1/completions` for prompts of token ids, as vLLM 0.32 answers them.

What it samples is given by the test, with its end: the ids always hold the token that ended the answer.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.engine import END_TOKEN, FakeEngine

Json = dict[str, Any]
MAX_MODEL_LEN = 64
N_IDS = 49152


@dataclass
class Completion:
    """One choice to come. `stop_reason`: the stop string, or the id of `stop_token_ids`, that ended it."""

    token_ids: list[int] = field(default_factory=lambda: [21, 22, END_TOKEN])
    logprobs: list[float | None] = field(default_factory=lambda: [-0.5, -1.25, -0.0625])
    text: str = "Hello"
    finish_reason: str = "stop"
    stop_reason: int | str | None = None


class TokenEngine(FakeEngine):
    """`completions` are sampled in order, the last one for ever; `asked` are the bodies that came."""

    def __init__(self) -> None:
        super().__init__()
        self.completions = [Completion()]
        self.asked: list[Json] = []
        self.spelled = ""  # what any tokens are as text

    def further_routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self._complete), web.post("/detokenize", self._detokenize)]

    async def _detokenize(self, _request: web.Request) -> web.Response:
        return web.json_response({"prompt": self.spelled})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        prompt = body["prompt"]
        if self.script.failures:
            return _refuse("overloaded", status=int(self.script.failures.pop(0)))
        if len(prompt) > MAX_MODEL_LEN:
            return _refuse(f"Input length ({len(prompt)}) exceeds model's maximum context length ({MAX_MODEL_LEN}).")
        if max(prompt) >= N_IDS:
            return _refuse(f"Token id {max(prompt)} is out of vocabulary")
        choices = [self._choice(body, index) for index in range(body.get("n") or 1)]
        n_sampled = sum(len(choice["token_ids"]) for choice in choices)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": n_sampled, "total_tokens": len(prompt) + n_sampled}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1796099164, "model": body["model"]}
        return web.json_response({**head, "choices": choices, "usage": usage, "system_fingerprint": "vllm-fake"})

    def _choice(self, body: Json, index: int) -> Json:
        completion = self.completions.pop(0) if len(self.completions) > 1 else self.completions[0]
        texts = [f"token_id:{token_id}" for token_id in completion.token_ids]
        logprobs = {"tokens": texts, "token_logprobs": completion.logprobs, "top_logprobs": [], "text_offset": []}
        return {
            "index": index,
            "text": completion.text,
            "logprobs": logprobs if body.get("logprobs") is not None else None,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "token_ids": completion.token_ids if body.get("return_token_ids") else None,
            "prompt_logprobs": None,
            "prompt_token_ids": body["prompt"] if body.get("return_token_ids") else None,
            "routed_experts": None,
        }


def _refuse(message: str, *, status: int = 400) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return web.Response(text=json.dumps({"error": error}), status=status, content_type="application/json")
