"""Tokens in, tokens out, as a dialect: what of a text completion is kept, and how it is said. Knows no sockets.

Ids and log-probs are the engine's own and equally many for every way in which an answer can end: the token that ends it
is one of them.
"""

from apps.gateway.capture import AnswerCapture
from apps.gateway.chat.behaviour import ChatVoice
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.errors import ApiError, render_openai
from apps.gateway.generate.shapes import read_generate_request
from apps.gateway.routes import KeyRoute


class GenerateDialect:
    """`POST /v1/generate`."""

    name = "generate"
    engine_path = "/v1/completions"
    id_prefix = "gen-"
    exact_fields: Json = {"return_token_ids": True, "logprobs": 0}  # 0: the sampled tokens' and no others

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:  # noqa: ARG002 (others need them)
        return read_generate_request(raw)

    def open_answer(self, request: ModelRequest, *, response_id: str) -> "tuple[GenerateCapture, GenerateVoice]":
        capture = GenerateCapture(
            response_id=response_id, model=request.model, n_choices=request.n_choices, wishes=request.wishes
        )
        return capture, GenerateVoice(capture)

    def render_error(self, error: ApiError) -> Json:
        body = render_openai(error)
        if error.code == "context_length_exceeded":
            body["error"]["param"] = "prompt_ids"
        return body


class GenerateCapture(AnswerCapture):
    """Takes whole text completions apart; the pool keeps them as chat completions.

    `stopped_by`: by choice, the stop string or the id of a stop token that ended it, None for any other end.
    """

    stopped_by: tuple[int | str | None, ...] = ()

    def take_whole(self, answer: Json) -> None:
        """Record the answer. Raises LookupError when it does not tell each token's id and log-prob."""
        choices = sorted(answer.get("choices") or [], key=lambda choice: choice["index"])
        if choices:
            answer["prompt_token_ids"] = choices[0].get("prompt_token_ids")
        self.stopped_by = tuple(choice.get("stop_reason") for choice in choices)
        answer["choices"] = [_as_chat_choice(choice) for choice in choices]
        answer["object"] = "chat.completion"
        super().take_whole(answer)
        if not self.packed_tokens().is_exact:
            raise LookupError("it does not tell each token's id and log-prob")


def _as_chat_choice(choice: Json) -> Json:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return {
        "index": choice["index"],
        "message": {"role": "assistant", "content": choice.get("text") or ""},
        "logprobs": {"content": [{"logprob": value} for value in logprobs]},
        "token_ids": choice.get("token_ids"),
        "finish_reason": choice.get("finish_reason"),
    }


class GenerateVoice(ChatVoice):
    """Says what was sampled, whole. `version` is the label of the weights that speak."""

    def __init__(self, capture: GenerateCapture) -> None:
        self.capture = capture
        self.version = ""

    def render_whole(self, answer: Json) -> Json:
        capture = self.capture
        said = zip(answer["choices"], capture.stopped_by, strict=True)
        choices = [self._render_choice(choice, stopped_by=stopped_by) for choice, stopped_by in said]
        head = {"id": capture.response_id, "object": "token_completion", "created": capture.created}
        body = head | {"model": capture.model, **choices[0], "usage": capture.usage}
        return body | ({"choices": choices} if len(choices) > 1 else {})

    def _render_choice(self, choice: Json, *, stopped_by: int | str | None) -> Json:
        sampled = self.capture.choices[choice["index"]]
        return {
            "token_ids": sampled.token_ids,
            "log_probs": sampled.logprobs,
            "text": choice["message"]["content"],
            "stop_reason": sampled.finish_reason,
            "stopped_by": stopped_by,
            # One span: a call ends on the version on which it began.
            "versions": [{"version": self.version, "start": 0, "end": len(sampled.token_ids)}],
        }
