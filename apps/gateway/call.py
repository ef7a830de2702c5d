"""One model call from its first byte to its record: what is asked of the engine and what of it is kept.

The same for every dialect. Knows no sockets.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
import structlog

from apps.core.contracts.exchange import COMPLETE, UNCAPTURED, ExchangeRecord
from apps.core.ids import new_id
from apps.gateway.capture import AnswerCapture
from apps.gateway.dialect import Dialect, Json, ModelRequest, Voice
from apps.gateway.errors import ApiError, bad_request, name_request
from apps.gateway.forced_calls import STRICT, hold_to_schemas, is_beyond_grammar
from apps.gateway.known_fields import LONGEST_NAME
from apps.gateway.limit_headers import LimitState
from apps.gateway.limits import estimate_tokens
from apps.gateway.prompt_form import KnownForms, Prompt
from apps.gateway.provider_form import make_provider_body
from apps.gateway.routes import EngineRoute, KeyRoute, VersionRoute
from apps.gateway.sessions import clean, kept_headers
from apps.gateway.spelled_messages import write_spelled

log = structlog.get_logger(__name__)

LONGEST_ERROR = 2000
MOST_TOLD = 10  # names in a header
_NOT_VISIBLE = re.compile(r"[^\x21-\x7e]")
_LIMITS = ("max_tokens", "max_completion_tokens")
_PYTHON_SAYS = re.compile(r"""'loc': .{0,500}?'msg': (?:'([^']+)'|"([^"]+)")""", re.DOTALL)  # pydantic's errors
_LIMIT_TOO_HIGH = re.compile(rb"tokens=\d+ cannot be greater than max_model_len=(\d+)")
NOT_SAMPLING = frozenset({"messages", "prompt", "model", "tools", "stream", "stream_options", "return_token_ids"})


def new_exchange_id() -> str:
    return new_id("exch")


@dataclass
class ModelCall:
    """What is known of a call. The answer's own parts are in `capture`; `voice` says them to the client."""

    exchange_id: str
    dialect: Dialect
    key: KeyRoute
    version: VersionRoute
    request: ModelRequest
    raw_request: bytes
    headers: dict[str, str]
    session_key: str  # the client's own name for its session, "" where it has none
    affinity: str  # what all calls of the session share
    trajectory_id: str
    may_train: bool = True
    forms: KnownForms = field(default_factory=KnownForms)
    limits: LimitState = field(default_factory=LimitState)
    engine: EngineRoute | None = None
    first_token_at: datetime | None = None
    status: str = COMPLETE
    error: str = ""
    response: bytes | None = None
    chat_answer: Json | None = None  # the whole answer as the engine gave it, less what we strip
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    response_id: str = field(init=False)
    capture: AnswerCapture = field(init=False)
    voice: Voice = field(init=False)
    sampling: Json = field(init=False)
    engine_body: bytes = field(init=False)
    prompt: Prompt = field(init=False)
    is_held: bool = False  # to its tools' schemas, by us

    def __post_init__(self) -> None:
        mark = UNCAPTURED if self.key.capture is not None and self.key.capture.is_off else ""
        self.response_id = f"{self.dialect.id_prefix}{mark}{self.exchange_id.partition('_')[2]}"
        self.forget_answer()
        body, dropped = build_engine_body(self.request, self.dialect.exact_fields, version=self.version)
        template = f"{self.key.project_id} {self.version.template}"
        self.prompt = Prompt(body.get("messages") or [], known=self.forms, template=template)
        if self.prompt.messages:
            body["messages"] = self.prompt.messages
        if not self.version.is_text_only and (held := hold_to_schemas(body)) is not None:
            body["tools"], self.is_held = held, True
        try:
            self.engine_body = self._write_body(body)
        except orjson.JSONEncodeError as error:  # it reads deeper than it writes
            raise bad_request("The body is nested too deeply.", code="invalid_json") from error
        self.sampling = {name: value for name, value in body.items() if name not in NOT_SAMPLING}
        if dropped := self.request.dropped | dropped:
            self.sampling["dropped"] = dropped
        self._note_mended()

    def _write_body(self, body: Json) -> bytes:
        """Return what is sent to the engine, in the client's own bytes where its messages are asked as they came.

        Of a name that stands in one of them twice, our engines read the last, as we do; providers may not.
        """
        spelled = b"" if self.version.is_text_only else self.request.spelled_messages
        if spelled and body["messages"] == self.request.body["messages"]:
            return write_spelled(body, spelled)
        return orjson.dumps(body)

    def forget_answer(self) -> None:
        """Make room for an answer: none has come, or what came was none."""
        self.capture, self.voice = self.dialect.open_answer(self.request, response_id=self.response_id)
        self.chat_answer = None

    def _note_mended(self) -> None:
        """Tell the client and the pool what the engine is asked in other words than the client's."""
        mended = self.prompt.mended | ({STRICT: "a call is insisted on"} if self.is_held else {})
        if mended:
            self.sampling["mended"] = mended
        else:
            self.sampling.pop("mended", None)

    def mend(self, status: int, refusal: bytes) -> bool:
        """Change what the engine is asked so that it may take it; says whether there was anything to change."""
        if self._lower_limit(refusal):
            return True
        if self.is_held and is_beyond_grammar(status, refusal):
            self.is_held = False
            changed = {"tools": self.request.engine_body["tools"]}
        elif self.prompt.make_stricter(status, refusal):
            changed = {"messages": self.prompt.messages}
        else:
            return False
        self.engine_body = orjson.dumps(orjson.loads(self.engine_body) | changed)
        self._note_mended()
        return True

    def _lower_limit(self, refusal: bytes) -> bool:
        """Ask for no more tokens than the engine's whole context; says whether that is what it refused.

        No answer could have been longer, so the client gets what it asked for: agents send one limit to all models.
        """
        found = _LIMIT_TOO_HIGH.search(refusal)
        if found is None:
            return False
        limit = int(found[1])
        body = orjson.loads(self.engine_body)
        lowered = {name: limit for name in _LIMITS if type(body.get(name)) is int and body[name] > limit}
        self.engine_body = orjson.dumps(body | lowered)
        self.sampling |= lowered
        return bool(lowered)

    def answer_headers(self) -> dict[str, str]:
        """Return the headers that tell the client which call this was and which weights spoke."""
        headers = name_request(self.exchange_id) | {"x-claw-version": self.version.label}
        headers |= self.limits.headers(self.dialect.name)
        if "dropped" in self.sampling:
            headers["x-claw-dropped"] = tell_names(self.sampling["dropped"])
        if "mended" in self.sampling:
            headers["x-claw-mended"] = tell_names(self.sampling["mended"])
        return headers

    def estimate_tokens(self) -> int:
        """Return about how many tokens the call will use."""
        longest = next((value for name in _LIMITS if (value := self.request.engine_body.get(name))), None)
        return estimate_tokens(len(self.raw_request), max_tokens=longest, n_choices=self.request.n_choices)

    def count_tokens(self) -> int | None:
        """Return how many tokens were used, None when an answer came without saying so."""
        usage = self.capture.usage or {}
        if n_tokens := usage.get("total_tokens"):
            return int(n_tokens)
        if not self.capture.choices:
            return 0
        n_sampled = sum(len(choice.token_ids) for choice in self.capture.choices.values())
        return len(self.capture.prompt_token_ids or ()) + n_sampled if n_sampled else None

    def fail(self, status: str, error: str) -> None:
        """Note that the call did not come to its end."""
        self.status = status
        self.error = clean(error, LONGEST_ERROR)

    def record(self) -> ExchangeRecord:
        """Return what the pool keeps of the call."""
        tokens = self.capture.packed_tokens()
        response = self.response
        if self.chat_answer is None and self.capture.choices:
            self.chat_answer = self.capture.render()
        if response is None and self.chat_answer is not None:
            response = orjson.dumps(self.voice.render_whole(orjson.loads(orjson.dumps(self.chat_answer))))
        return ExchangeRecord(
            id=self.exchange_id,
            project_id=self.key.project_id,
            agent_id=self.key.agent_id,
            key_id=self.key.id,
            version_id=self.version.id,
            engine_id=self.engine.id if self.engine else "",
            trajectory_id=self.trajectory_id,
            session_key=self.session_key,
            dialect=self.dialect.name,
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
            is_training_allowed=self.request.is_trainable and self.may_train,
            token_check=self._check_tokens(),
            **self._chat_form(),
        )

    def _check_tokens(self) -> str:
        """Return why the ids are doubted; a call that was cut short, or a provider's, is not exact anyway."""
        has_ids = self.status == COMPLETE and not self.version.is_text_only
        doubt = self.capture.find_doubt() if has_ids else ""
        if doubt:
            engine = self.engine.base_url if self.engine else ""
            log.warning("tokens.doubted", exchange=self.exchange_id, engine=engine, reason=doubt)
        return doubt

    def _chat_form(self) -> dict[str, bytes]:
        """Return what was asked and answered in chat form, where the client's own words are of another dialect."""
        if self.request.chat_form is None:
            return {}
        form = {"chat_request": orjson.dumps(self.request.chat_form)}
        return form | ({"chat_response": self._write_chat_answer()} if self.chat_answer is not None else {})

    def _write_chat_answer(self) -> bytes:
        try:
            return orjson.dumps(self.chat_answer)
        except orjson.JSONEncodeError:  # it reads deeper than it writes: then only what we understand of it
            return orjson.dumps(self.capture.render())


def tell_names(names: Iterable[str]) -> str:
    """Return names as a header may hold them: clients choose some of them, and may choose line ends."""
    return ", ".join(_NOT_VISIBLE.sub("", name)[:LONGEST_NAME] for name in islice(names, MOST_TOLD))


def build_engine_body(request: ModelRequest, exact_fields: Json, *, version: VersionRoute) -> tuple[Json, Json]:
    """Return what is sent to the engine, and the meaningful fields that had to be left out.

    Exact ids and log-probs are asked for on every call to an engine of ours. A seed is left out there: it can crash
    vLLM's CPU engine. A provider is asked in OpenAI's words only; raises ApiError (400) where those do not suffice.
    """
    body: dict[str, Any] = {**request.engine_body, "model": version.engine_name}
    dropped = dict(request.dropped)
    if version.is_text_only:
        body, left_out = make_provider_body(body, asked=request.body)
        dropped |= left_out
    else:
        body |= exact_fields
        if (seed := body.pop("seed", None)) is not None:
            dropped["seed"] = seed
    if request.is_streamed:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return body, dropped


def read_refusal(status: int, body: bytes) -> ApiError:
    """Return the engine's own 4xx answer as an error: its words, but a list of Python dicts is put plainly."""
    try:
        error = orjson.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        message, param = body[:LONGEST_ERROR].decode(errors="replace"), None
    param = param.removeprefix("body.") if isinstance(param, str) else None
    if said := _PYTHON_SAYS.search(message):
        message = f"Invalid request: {f'`{param}`: ' if param else ''}{said.group(1) or said.group(2)}."
    is_too_long = "maximum context length" in message
    return ApiError(
        message,
        status=status,
        code="context_length_exceeded" if is_too_long else None,
        param="messages" if is_too_long else param,
    )
