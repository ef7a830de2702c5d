"""What a dialect tells the one pipeline that serves them all.

Each request is rendered to one form, the chat completion that engines understand, and each answer is captured in that
form; a voice says it in the client's words. Knows no sockets and no engine.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from apps.gateway.capture import AnswerCapture, Wishes
from apps.gateway.errors import ApiError

if TYPE_CHECKING:
    from apps.gateway.desk import Desk
    from apps.gateway.routes import KeyRoute

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request that has been looked over.

    `body` is the client's, unchanged. `engine_body` is what an engine is asked, without the model's name and without
    what only exact capture needs. `chat_form` holds the messages and tools for the pool, None when `body` does.
    `dropped`: what was left out of it, name → value or reason; the client is told the names in a header.
    `is_trainable`: False where the answers do not all go on from one and the same state.
    `trajectory_id`: where the body itself says that the call belongs, "" when it does not.
    `spelled_messages`: the body's messages as the client wrote them, empty where that is of no use.
    """

    body: Json
    engine_body: Json
    model: str
    is_streamed: bool
    wishes: Wishes
    n_choices: int = 1
    chat_form: Json | None = None
    dropped: Json = field(default_factory=dict)
    trajectory_id: str = ""
    is_trainable: bool = True
    spelled_messages: bytes | memoryview = b""


class Voice(Protocol):
    """Speaks one answer. It is fed in order and may keep what it needs between its calls."""

    def render_whole(self, answer: Json) -> Json:
        """Return a whole chat completion in the client's words."""
        ...

    def render_chunk(self, chunk: Json) -> bytes:
        """Return the events that one chunk of a stream becomes, maybe none."""
        ...

    def render_end(self) -> bytes:
        """Return the events that end a complete stream."""
        ...

    def render_break(self, error: ApiError) -> bytes:
        """Return the events that end a stream which broke off after its start."""
        ...


class Dialect(Protocol):
    """One endpoint family. `exact_fields`: what makes an engine tell token ids and log-probs."""

    name: str
    engine_path: str
    id_prefix: str
    exact_fields: Json

    async def read_request(self, raw: bytes, *, desk: "Desk", key: "KeyRoute") -> ModelRequest:
        """Return the request in these bytes; raises ApiError that names the field at fault."""
        ...

    def open_answer(self, request: ModelRequest, *, response_id: str) -> tuple[AnswerCapture, Voice]:
        """Return what takes the engine's answer apart, and what says it."""
        ...

    def render_error(self, error: ApiError) -> Json:
        """Return an error's body in the client's words."""
        ...
