"""Anthropic's messages as a dialect, rendered to chat and back. Knows no sockets."""

from apps.gateway.capture import AnswerCapture
from apps.gateway.chat.behaviour import make_chat_capture
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest, Voice
from apps.gateway.errors import ApiError
from apps.gateway.messages.errors import render_anthropic
from apps.gateway.messages.shapes import read_messages_request
from apps.gateway.messages.voice import MessagesVoice
from apps.gateway.routes import KeyRoute


class MessagesDialect:
    """`POST /v1/messages`."""

    name = "messages"
    engine_path = "/v1/chat/completions"
    id_prefix = "msg_"
    exact_fields: Json = {"return_token_ids": True, "logprobs": True}

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:  # noqa: ARG002 (others need them)
        return read_messages_request(raw)

    def open_answer(self, request: ModelRequest, *, response_id: str) -> tuple[AnswerCapture, Voice]:
        capture = make_chat_capture(request, response_id=response_id)
        return capture, MessagesVoice(capture)

    def render_error(self, error: ApiError) -> Json:
        return render_anthropic(error)
