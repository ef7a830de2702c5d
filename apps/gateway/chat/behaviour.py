"""Chat completions as a dialect: the form that engines speak, so there is nothing to translate. Knows no sockets."""

import orjson

from apps.gateway.capture import AnswerCapture
from apps.gateway.chat.shapes import read_chat_request
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest, Voice
from apps.gateway.errors import ApiError, render_openai
from apps.gateway.routes import KeyRoute
from apps.gateway.sse import DONE, event
from apps.gateway.token_check import expect_of


class ChatDialect:
    """`POST /v1/chat/completions`."""

    name = "chat"
    engine_path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    exact_fields: Json = {"return_token_ids": True, "logprobs": True}

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:
        return read_chat_request(raw, desk.known_talks, scope=key.project_id)

    def open_answer(self, request: ModelRequest, *, response_id: str) -> tuple[AnswerCapture, Voice]:
        return make_chat_capture(request, response_id=response_id), ChatVoice()

    def render_error(self, error: ApiError) -> Json:
        return render_openai(error)


class ChatVoice:
    """Says what the engine says."""

    def render_whole(self, answer: Json) -> Json:
        return answer

    def render_chunk(self, chunk: Json) -> bytes:
        return event(orjson.dumps(chunk))

    def render_end(self) -> bytes:
        return event(DONE)

    def render_break(self, error: ApiError) -> bytes:
        return event(orjson.dumps(render_openai(error)))


def make_chat_capture(request: ModelRequest, *, response_id: str) -> AnswerCapture:
    """Return what takes chat completions apart; for every dialect that is rendered to chat."""
    return AnswerCapture(
        response_id=response_id,
        model=request.model,
        n_choices=request.n_choices,
        wishes=request.wishes,
        expectations=expect_of(request.engine_body),
    )
