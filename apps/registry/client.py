"""The only code that manages an engine: health, adapters, and the two questions by which a version is checked.

Synchronous, with an end to every call and a measure of every answer. Knows vLLM's HTTP shapes; knows nothing of
policies, aliases or tables. (The gateway streams model calls itself.)
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from types import TracebackType
from typing import Any, Self

import urllib3

from apps.core.deadlines import WatchedConnection, WatchedSecureConnection, hang_up_after
from apps.core.errors import ServiceError, Unavailable
from apps.core.retry_after import read_retry_after_s
from apps.registry.addresses import check_peer

CONNECT_S = 2.0
QUICK_S = 5.0  # lists, unloads
LOAD_S = 60.0
ANSWER_S = 180.0  # the first call with a new adapter compiles on some devices
CANARY_TOKENS = 8
MAX_ANSWER = 256 * 1024 * 1024  # bytes; log-probs of many prompts take the most
MAX_CHAT = 16 * 1024 * 1024
_PIECE = 1024 * 1024
_LONGEST = 2**31  # no context has so many tokens
TOP_LOGPROBS = 20  # what vLLM allows unless told otherwise


class EngineUnreachable(Unavailable):
    """The engine did not answer; `is_timeout` when it took the connection but stayed silent."""

    code = "engine_unreachable"

    def __init__(self, message: str, *, is_timeout: bool = False, retry_after_s: int | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.is_timeout = is_timeout


class EngineRefused(ServiceError):
    """The engine answered that it will not do this; the message holds its reason."""

    status = 502
    code = "engine_refused"

    def __init__(self, message: str, *, engine_status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.engine_status = engine_status


class EngineNonsense(ServiceError):
    """The engine answered in a shape that its API does not have."""

    status = 502
    code = "engine_nonsense"


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A name that an engine answers to: base weights (`parent` is "") or an adapter."""

    name: str
    parent: str
    max_model_len: int | None = None  # tokens of request and answer together; engines other than vLLM do not tell


def _read_model(item: Mapping[str, Any]) -> ServedModel:
    length = item.get("max_model_len")
    is_told = isinstance(length, int) and 0 < length < _LONGEST
    parent = str(item.get("parent") or "")
    return ServedModel(name=str(item["id"]), parent=parent, max_model_len=length if is_told else None)


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """What a model said (`message` has its tool calls too), and the tokens of question and answer together (0: not
    told)."""

    text: str
    message: dict[str, Any]
    n_tokens: int


class EngineClient:
    """One engine. Use as a context manager, or call `close`.

    What it says of an engine of the platform's own goes to people of all teams, so `said` names no address.
    """

    _chat_path = "/v1/chat/completions"

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        self.said = "the engine"
        self._pool = urllib3.PoolManager(num_pools=1, retries=False)
        self._pool.pool_classes_by_scheme = {"http": _WatchedPool, "https": _WatchedSecurePool}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._pool.clear()

    def list_models(self) -> list[ServedModel]:
        """Return what the engine serves now, base weights first."""
        answer = self._call_json("GET", "/v1/models", read_s=QUICK_S)
        try:
            return [_read_model(item) for item in answer["data"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineNonsense(f"{self.said} lists its models in an unknown shape") from error

    def load_adapter(self, name: str, path: str) -> None:
        """Load the adapter in the folder `path` (as the engine sees it) under `name`."""
        self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, read_s=LOAD_S)

    def unload_adapter(self, name: str) -> None:
        """Drop the adapter; one that is not there is dropped already."""
        try:
            self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, read_s=QUICK_S)
        except EngineRefused as error:
            if error.engine_status != 404:
                raise

    def probe_logprobs(self, model: str, token_ids: Sequence[int], wanted: Sequence[tuple[int, int]]) -> list[float]:
        """Return, for each (position, id) of `wanted`, the log-prob (nats, temperature 1) of `id` after
        `token_ids[: position + 1]`; one that is not among the engine's first TOP_LOGPROBS gets the last one's."""
        prompts = [token_ids[: position + 1] for position, _ in wanted]
        tops = map(_keep_first, self.list_top_logprobs(model, prompts, temperature=1.0, read_s=ANSWER_S))
        pairs = zip(tops, wanted, strict=True)
        return [top.get(token, min(top.values())) for top, (_, token) in pairs]

    def list_top_logprobs(
        self, model: str, prompts: Sequence[Sequence[int]], *, temperature: float, read_s: float
    ) -> list[dict[int, float]]:
        """Return, for each prompt, the log-probs (nats, at that temperature) of the TOP_LOGPROBS ids that are the
        likeliest next; and of one more where the engine, which has to sample one, sampled none of these.

        Each place is a prompt of its own: vLLM's CPU engine crashes when `prompt_logprobs` of an adapter are asked for
        while another call runs.
        """
        body = {
            "model": model,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": 1,
            "temperature": temperature,
            "logprobs": TOP_LOGPROBS,
            "return_tokens_as_token_ids": True,
        }
        answer = self._call_json("POST", "/v1/completions", body, read_s=read_s)
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            tops = [_read_top(choice["logprobs"]["top_logprobs"][0]) for choice in choices]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineNonsense(f"{self.said} returned no usable log-probs for the probe of {model}") from error
        if len(tops) != len(prompts) or not all(tops):
            raise EngineNonsense(f"{self.said} returned no usable log-probs for the probe of {model}")
        if not all(math.isfinite(value) for top in tops for value in top.values()):
            raise EngineNonsense(f"{self.said} returned log-probs for {model} that are not numbers")
        return tops

    def pause(self) -> None:
        """Let the calls in flight end; later ones wait in the engine until `resume`."""
        self._call("POST", "/pause?mode=wait", read_s=ANSWER_S)

    def reload_weights(self, path: str) -> None:
        """Put the whole model in the folder `path` (as the engine sees it) in the place of the present one; paused."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._call("POST", "/collective_rpc", body, read_s=ANSWER_S)
        self._call("POST", "/reset_prefix_cache?reset_running_requests=true", read_s=QUICK_S)

    def name_weights(self, name: str) -> None:
        """Have the engine remember, for its lifetime, what its weights are called."""
        self._call("POST", "/update_weight_version", {"new_version": name}, read_s=QUICK_S)

    def read_weights_name(self) -> str:
        """Return what the weights were called last; a word of the engine's own since it started."""
        answer = self._call_json("GET", "/weight_info", read_s=QUICK_S)
        try:
            return str(answer["weight_version"])
        except (KeyError, TypeError) as error:
            raise EngineNonsense(f"{self.said} does not say which weights it has") from error

    def resume(self) -> None:
        """Answer again."""
        self._call("POST", "/resume", read_s=QUICK_S)

    def read_text(self, model: str, token_ids: Sequence[int]) -> str:
        """Return the text of the tokens together, as the engine's tokenizer has it."""
        answer = self._call_json("POST", "/detokenize", {"model": model, "tokens": list(token_ids)}, read_s=QUICK_S)
        try:
            return str(answer["prompt"])
        except (KeyError, TypeError) as error:
            raise EngineNonsense(f"{self.said} returned no usable text for tokens") from error

    def ask_canary(self, model: str) -> str:
        """Return the answer to a short chat; raises EngineNonsense when no token came."""
        messages = [{"role": "user", "content": "Say hello."}]
        body = {"model": model, "messages": messages, "max_tokens": CANARY_TOKENS, "temperature": 0.0}
        answer = self._call_json("POST", "/v1/chat/completions", body, read_s=ANSWER_S)
        try:
            text, n_tokens = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
        except (KeyError, IndexError, TypeError) as error:
            raise EngineNonsense(f"{self.said} answered a chat with {model} in an unknown shape") from error
        if not n_tokens:
            raise EngineNonsense(f"{self.said} answered a chat with {model} with nothing")
        return text or ""

    def ask_chat(self, body: Mapping[str, Any], *, read_s: float) -> ChatAnswer:
        """Return the first choice of a chat completion; `body` is the request's. Raises EngineNonsense and the like."""
        answer = self._call_json("POST", self._chat_path, dict(body), read_s=read_s, max_bytes=MAX_CHAT)
        try:
            message = answer["choices"][0]["message"]
            text = message.get("content")
            n_tokens = int((answer.get("usage") or {}).get("total_tokens") or 0)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise EngineNonsense(f"{self.said} answered a chat in an unknown shape") from error
        return ChatAnswer(text=text if isinstance(text, str) else "", message=message, n_tokens=n_tokens)

    def _call_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, read_s: float, max_bytes: int = MAX_ANSWER
    ) -> Any:
        content = self._call(method, path, body, read_s=read_s, max_bytes=max_bytes)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise EngineNonsense(f"{self.said} ({path}) did not answer in JSON") from error

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, read_s: float, max_bytes: int = MAX_ANSWER
    ) -> bytes:
        answer, content = self._fetch(method, path, body, read_s=read_s, max_bytes=max_bytes)
        wait_s = read_retry_after_s(answer.headers.get("Retry-After", "")) or None
        if answer.status >= 500:
            message = f"{self.said} ({path}) failed with {answer.status}: {_read_reason(content)}"
            raise EngineUnreachable(message, retry_after_s=wait_s)
        if answer.status >= 400:
            message = f"{self.said} ({path}) refused: {_read_reason(content)}"
            raise EngineRefused(message, engine_status=answer.status, retry_after_s=wait_s)
        if answer.status >= 300:  # followed, it could lead a credential anywhere
            raise EngineNonsense(f"{self.said} ({path}) answered {answer.status} and points elsewhere")
        return content

    def _fetch(
        self, method: str, path: str, body: dict[str, Any] | None, *, read_s: float, max_bytes: int
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        """Return what was answered. Raises EngineUnreachable when it has not come whole in `read_s`."""
        timeout = urllib3.Timeout(connect=CONNECT_S, read=read_s)
        too_late = f"{self.said} ({path}) gave no answer in {read_s:g} s"
        with hang_up_after(CONNECT_S + read_s) as is_over:
            try:
                answer = self._pool.request(
                    method, self.base_url + path, json=body, timeout=timeout, redirect=False, preload_content=False
                )
                content = self._read(answer, path=path, max_bytes=max_bytes)
            except urllib3.exceptions.HTTPError as error:
                if is_over.is_set() or isinstance(error, urllib3.exceptions.ReadTimeoutError):
                    raise EngineUnreachable(too_late, is_timeout=True) from error
                raise EngineUnreachable(f"{self.said} cannot be reached: {_tell_why(error)}") from error
        if is_over.is_set():  # an answer without a length looks whole
            raise EngineUnreachable(too_late, is_timeout=True)
        return answer, content

    def _read(self, answer: urllib3.BaseHTTPResponse, *, path: str, max_bytes: int) -> bytes:
        pieces, n_bytes = [], 0
        for piece in answer.stream(_PIECE):
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                answer.close()
                raise EngineNonsense(f"{self.said} ({path}) answered with more than {max_bytes} bytes")
        answer.release_conn()
        return b"".join(pieces)


class ProviderClient(EngineClient):
    """A server that a project's owner has named, asked with its credential. It may not be where no provider may be,
    whatever its name has come to mean since it was looked up.
    """

    _chat_path = "/chat/completions"  # a provider's address is as its clients are given it

    def __init__(self, base_url: str, *, credential: str) -> None:
        super().__init__(base_url)
        self.said = self.base_url
        self._pool.headers = {"Authorization": f"Bearer {credential}"} if credential else {}
        self._pool.pool_classes_by_scheme = {"http": _GuardedPool, "https": _GuardedSecurePool}

    def check(self) -> None:
        """Raise unless a provider answers here and takes our credential. Some list no models: that they say so is fine.

        Its own words about a credential are kept back, since they may quote it.
        """
        try:
            self._call("GET", "/models", read_s=QUICK_S)
        except EngineRefused as error:
            if error.engine_status in {401, 402, 403}:
                message = f"{self.said} refuses the credential ({error.engine_status}): enter another one"
                raise EngineRefused(message, engine_status=error.engine_status) from None


class _WatchedPool(urllib3.HTTPConnectionPool):
    ConnectionCls = WatchedConnection


class _WatchedSecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = WatchedSecureConnection


class _GuardedConnection(WatchedConnection):
    def connect(self) -> None:
        super().connect()
        check_peer(self.host, self.sock.getpeername()[0])


class _GuardedSecureConnection(WatchedSecureConnection):
    def connect(self) -> None:
        super().connect()
        check_peer(self.host, self.sock.getpeername()[0])


class _GuardedPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _GuardedConnection


class _GuardedSecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _GuardedSecureConnection


def _keep_first(top: Mapping[int, float]) -> dict[int, float]:
    """Return the likeliest TOP_LOGPROBS: not the one more that happened to be sampled, which is another each time."""
    return dict(nlargest(TOP_LOGPROBS, top.items(), key=itemgetter(1)))


def _read_top(top: Mapping[str, Any]) -> dict[int, float]:
    return {int(name.removeprefix("token_id:")): float(value) for name, value in top.items()}


def _tell_why(error: urllib3.exceptions.HTTPError) -> str:
    """Return in plain words why there is no connection."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "nobody knows a host of this name"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "nothing listens there: it is starting, or it is down"
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return f"no connection in {CONNECT_S:g} s"
    return "the connection broke off"


def _read_reason(content: bytes) -> str:
    """Return the engine's own words, whichever of vLLM's error shapes they come in."""
    text = content[:500].decode(errors="replace")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return text
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict) and "message" in error:
            return str(error["message"])
        return str(body.get("detail", text))
    return text
