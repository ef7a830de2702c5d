"""What a chat call asks of the engine and what of it is kept. Knows no sockets."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from apps.core.contracts.exchange import COMPLETE, ExchangeRecord
from apps.core.ids import new_id
from apps.gateway.capture import AnswerCapture
from apps.gateway.chat.shapes import IGNORED, NOT_SAMPLING, ChatRequest
from apps.gateway.errors import ApiError, bad_request
from apps.gateway.routes import EngineRoute, KeyRoute, VersionRoute
from apps.gateway.sessions import clean, find_session_key, kept_headers

DIALECT = "chat"
ENGINE_PATH = "/v1/chat/completions"
LONGEST_ERROR = 2000


@dataclass
class ChatCall:
    """One call from its first byte to its record."""

    exchange_id: str
    key: KeyRoute
    version: VersionRoute
    request: ChatRequest
    raw_request: bytes
    headers: dict[str, str]
    trajectory_id: str
    engine: EngineRoute | None = None
    first_token_at: datetime | None = None
    status: str = COMPLETE
    error: str = ""
    response: bytes | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    capture: AnswerCapture = field(init=False)
    sampling: dict[str, Any] = field(init=False)
    engine_body: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.capture = AnswerCapture(
            response_id=f"chatcmpl-{self.exchange_id.partition('_')[2]}",
            model=self.request.model,
            n_choices=self.request.n_choices,
            wishes=self.request.wishes,
        )
        body, dropped = build_engine_body(self.request, engine_name=self.version.engine_name)
        try:
            self.engine_body = orjson.dumps(body)
        except orjson.JSONEncodeError as error:  # it reads deeper than it writes
            raise bad_request("The body is nested too deeply.", code="invalid_json") from error
        self.sampling = {name: value for name, value in body.items() if name not in NOT_SAMPLING}
        if dropped:
            self.sampling["dropped"] = dropped

    def answer_headers(self) -> dict[str, str]:
        """Return the headers that tell the client which call this was and which weights spoke."""
        headers = {"x-request-id": self.exchange_id, "x-claw-version": self.version.label}
        if "dropped" in self.sampling:
            headers["x-claw-dropped"] = ", ".join(self.sampling["dropped"])
        return headers

    def fail(self, status: str, error: str) -> None:
        """Note that the call did not come to its end."""
        self.status = status
        self.error = clean(error, LONGEST_ERROR)

    def record(self) -> ExchangeRecord:
        """Return what the pool keeps of the call."""
        tokens = self.capture.packed_tokens()
        response = self.response
        if response is None and self.capture.choices:
            response = orjson.dumps(self.capture.render())
        return ExchangeRecord(
            id=self.exchange_id,
            project_id=self.key.project_id,
            agent_id=self.key.agent_id,
            key_id=self.key.id,
            version_id=self.version.id,
            engine_id=self.engine.id if self.engine else "",
            trajectory_id=self.trajectory_id,
            session_key=find_session_key(self.headers, self.request.body, self.raw_request),
            dialect=DIALECT,
            response_id=self.capture.response_id,
            request=self.raw_request,
            headers=kept_headers(self.headers),
            response=response,
            prompt_token_ids=tokens.prompt,
            completion_token_ids=tokens.completions,
            completion_logprobs=tokens.logprobs,
            sampling=orjson.dumps(self.sampling),
            status=self.status,
            error=self.error,
            is_streamed=self.request.is_streamed,
            is_exact=tokens.is_exact and self.status == COMPLETE,
            started_at=self.started_at,
            first_token_at=self.first_token_at,
            ended_at=datetime.now(UTC),
        )


def new_exchange_id() -> str:
    return new_id("exch")


def build_engine_body(request: ChatRequest, *, engine_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is sent to the engine, and the meaningful fields that had to be left out.

    Exact ids and log-probs are asked for on every call. A seed is left out: it can crash vLLM's CPU engine.
    """
    body = {name: value for name, value in request.body.items() if name not in IGNORED}
    dropped = {"seed": body.pop("seed")} if body.get("seed") is not None else {}
    body |= {"model": engine_name, "return_token_ids": True, "logprobs": True}
    if request.is_streamed:
        body["stream_options"] = {**(request.body.get("stream_options") or {}), "include_usage": True}
    return body, dropped


def read_refusal(status: int, body: bytes) -> ApiError:
    """Return the engine's own 4xx answer as an error in OpenAI's shape, its words unchanged."""
    try:
        error = orjson.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        message, param = body[:LONGEST_ERROR].decode(errors="replace"), None
    is_too_long = "maximum context length" in message
    return ApiError(
        message,
        status=status,
        code="context_length_exceeded" if is_too_long else None,
        param="messages" if is_too_long else param,
    )
