"""Text completions as a dialect: a path of its own on the engine, kept in the form of chat answers. Knows no sockets.

One call is one exchange, whatever the number of prompts: its choices count prompts times `n`, each with its own ids
and log-probs. Prompt ids are kept when there is one prompt. With several there is no one state that the choices came
from, so the exchange is not called exact and stays out of training; who wants such prompts as steps asks one by one.
"""

import orjson

from apps.gateway.capture import AnswerCapture
from apps.gateway.completions.shapes import read_completion_request
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest, Voice
from apps.gateway.errors import ApiError, render_openai
from apps.gateway.routes import KeyRoute
from apps.gateway.sse import DONE, event


class CompletionDialect:
    """`POST /v1/completions`."""

    name = "completions"
    engine_path = "/v1/completions"
    id_prefix = "cmpl-"
    exact_fields: Json = {"return_token_ids": True}

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:  # noqa: ARG002 (others need them)
        return read_completion_request(raw)

    def open_answer(self, request: ModelRequest, *, response_id: str) -> tuple[AnswerCapture, Voice]:
        return CompletionCapture(request, response_id=response_id), CompletionVoice()

    def render_error(self, error: ApiError) -> Json:
        if error.code == "context_length_exceeded":
            error.param = "prompt"
        return render_openai(error)


class CompletionCapture(AnswerCapture):
    """Turns the engine's text completions into chat completions, then takes them apart like those."""

    def __init__(self, request: ModelRequest, *, response_id: str) -> None:
        super().__init__(
            response_id=response_id, model=request.model, n_choices=request.n_choices, wishes=request.wishes
        )
        self.has_one_prompt = request.is_trainable

    def take_chunk(self, chunk: Json) -> bool:
        self._turn(chunk, said="delta")
        return super().take_chunk(chunk)

    def take_whole(self, answer: Json) -> None:
        self._turn(answer, said="message")
        super().take_whole(answer)

    def _turn(self, answer: Json, *, said: str) -> None:
        answer["object"] = "chat.completion.chunk" if said == "delta" else "chat.completion"
        for choice in answer.get("choices") or ():
            text = choice.pop("text", None) or ""
            if choice.get("prompt_token_ids") is not None and self.has_one_prompt:
                self.prompt_token_ids = choice["prompt_token_ids"]
            if not self.wishes.token_ids:
                choice.pop("prompt_token_ids", None)
            if said == "message":
                choice[said] = {"role": "assistant", "content": text}
            else:  # an empty one is not sent
                choice[said] = {"content": text} if text or choice.get("prompt_token_ids") else {}
            choice.pop("prompt_logprobs", None)
            choice["logprobs"] = turn_logprobs(choice.get("logprobs"))


def turn_logprobs(logprobs: Json | None) -> Json | None:
    """Return a completion's parallel lists as the list of items that chat completions have."""
    if logprobs is None:
        return None
    tokens = logprobs["tokens"]
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    return {
        "content": [
            {
                "token": token,
                "logprob": logprob,
                "top_logprobs": [{"token": other, "logprob": value} for other, value in (top or {}).items()],
            }
            for token, logprob, top in zip(tokens, logprobs["token_logprobs"], tops, strict=True)
        ]
    }


class CompletionVoice:
    """Says a chat completion as a text completion."""

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}  # choice → how much text its log-probs have told of

    def render_whole(self, answer: Json) -> Json:
        choices = [self._render_choice(choice, said="message") for choice in answer.get("choices") or ()]
        return {**answer, "object": "text_completion", "choices": choices}

    def render_chunk(self, chunk: Json) -> bytes:
        choices = [self._render_choice(choice, said="delta") for choice in chunk.get("choices") or ()]
        return event(orjson.dumps({**chunk, "object": "text_completion", "choices": choices}))

    def render_end(self) -> bytes:
        return event(DONE)

    def render_break(self, error: ApiError) -> bytes:
        return event(orjson.dumps(render_openai(error)))

    def _render_choice(self, choice: Json, *, said: str) -> Json:
        index = choice.get("index") or 0
        rendered = {name: value for name, value in choice.items() if name not in {"message", "delta", "logprobs"}}
        rendered["text"] = (choice.get(said) or {}).get("content") or ""
        rendered["logprobs"] = self._render_logprobs(choice.get("logprobs"), index)
        return rendered

    def _render_logprobs(self, logprobs: Json | None, index: int) -> Json | None:
        if logprobs is None:
            return None
        items = logprobs["content"]
        offsets = []
        for item in items:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(item["token"])
        return {
            "tokens": [item["token"] for item in items],
            "token_logprobs": [item["logprob"] for item in items],
            "top_logprobs": [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in items],
            "text_offset": offsets,
        }
