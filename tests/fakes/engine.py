"""A fake engine: a real HTTP server that speaks vLLM 0.32's fields, with an answer that the test scripts.

It runs in a thread of its own with its own event loop. What it "sampled" and what it was asked stand in `calls`.
"""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes.engine_forms import count_prompts, embed, find_field_fault, find_template_fault, render_completion

Json = dict[str, Any]
END_TOKEN = 2
CALL_ID = "chatcmpl-tool-9bcaccb577fa21b8"  # not alphanumeric, and the same each time: the gateway must mend both


@dataclass
class Sampled:
    """One choice as the engine sampled it."""

    pieces: list[str]
    token_ids: list[int]
    logprobs: list[float]


@dataclass
class EngineCall:
    """One request that reached the engine."""

    body: Json
    headers: dict[str, str]
    prompt_token_ids: list[int]
    choices: list[Sampled]
    is_cancelled: bool = False
    n_chunks_sent: int = 0
    peer_port: int = 0  # tells one connection from another
    raw: bytes = b""  # the body as it came


@dataclass
class Script:
    """How the engine behaves from now on."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo", " 🦦", " you"])
    tool: Json | None = None  # {"name", "arguments"}: answer with this call instead
    more_tools: list[Json] = field(default_factory=list)  # and with these beside it
    reasoning: str = ""
    finish_reason: str = "stop"
    stop_reason: str | int | None = None  # the stop sequence that was met, or an end token's number
    n_cached: int | None = None  # prompt tokens out of the prefix cache, when it tells
    pause_s: float = 0.0  # before each chunk
    first_pause_s: float = 0.0
    nonsense: object = None  # what it answers instead, in JSON; bytes as they are
    knows_streams: bool = True  # else nonsense comes whole where a stream was asked for
    failures: list[int | str] = field(default_factory=list)  # a status, or "drop": one for each coming request
    break_after: int | None = None  # chunks, then the connection breaks
    error_after: int | None = None  # chunks, then an error event
    lose_ids_after: int | None = None  # chunks from here on carry no ids
    shown: list[str] | None = None  # what its parsers make of the sampled text, where they get it wrong
    has_logprobs: bool = True
    miscounts_by: int = 0  # in `usage`
    n_dimensions: int = 0  # of embeddings; 0: it serves none
    speaks_base64: bool = True  # in embeddings
    split_at: int = 0  # cut the stream into writes of this many bytes
    max_prompt_chars: int = 20_000
    max_model_len: int | None = None  # a `max_tokens` above it is refused
    no_grammar: str = ""  # how a strict tool is refused; empty: it is held to its schema
    template: str = ""  # what its chat template insists on; see `engine_forms.find_template_fault`


class FakeEngine:
    """`with FakeEngine() as engine:` then `engine.url`."""

    def __init__(self) -> None:
        self.script = Script()
        self.calls: list[EngineCall] = []
        self.counted: list[Json] = []  # what /tokenize was asked
        self.url = ""
        self.port = 0
        self._random = random.Random(7)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes([web.post("/v1/chat/completions", self._chat), web.get("/v1/models", self._models)])
        app.add_routes([web.post("/v1/completions", self._complete), web.post("/v1/embeddings", self._embed)])
        app.add_routes([web.post("/tokenize", self._tokenize)])
        app.add_routes(self.further_routes())
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def further_routes(self) -> list[web.RouteDef]:
        """What an engine serves beside chat; see `token_engine`."""
        return []

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 2048}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.script.failures:
            return _error("overloaded", status=int(self.script.failures.pop(0)))
        if fault := find_template_fault(body["messages"], self.script.template):
            return _error(fault)
        if self.script.nonsense is not None:
            return web.Response(body=self._nonsense())
        self.counted.append(body)
        n_tokens = 10 * len(body["messages"]) + 100 * len(body.get("tools") or ())
        return web.json_response({"count": n_tokens, "max_model_len": 2048, "tokens": [7] * n_tokens})

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self.script.n_dimensions:  # what vLLM says of any path that it does not have
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.script.failures:
            return _error("overloaded", status=int(self.script.failures.pop(0)))
        if len(str(body["input"])) > self.script.max_prompt_chars:
            return _error("This model's maximum context length is 2048 tokens.", param="input_tokens")
        if self.script.nonsense is not None:
            return web.Response(body=self._nonsense())
        self.counted.append(body)
        await asyncio.sleep(self.script.first_pause_s)
        return web.json_response(
            embed(body, n_dimensions=self.script.n_dimensions, speaks_base64=self.script.speaks_base64)
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, render=render_completion)

    async def _answer(
        self, request: web.Request, *, render: Callable[[Json, EngineCall], Json] = lambda answer, _call: answer
    ) -> web.StreamResponse:
        """Answer like a chat, in the words that `render` finds for it."""
        body = await request.json()
        if self.script.failures:
            failure = self.script.failures.pop(0)
            if failure == "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return _error("overloaded", status=int(failure))
        if refusal := self._find_refusal(body):
            return refusal
        if self.script.nonsense is not None:
            nonsense = self._nonsense()
            is_streamed = body.get("stream") and self.script.knows_streams
            return web.Response(body=b"data: %b\n\n" % nonsense if is_streamed else nonsense)
        call = self._sample(body, dict(request.headers))
        call.peer_port = request.get_extra_info("peername")[1]
        call.raw = await request.read()
        self.calls.append(call)
        try:
            await asyncio.sleep(self.script.first_pause_s)
            if body.get("stream"):
                return await self._stream(request, call, render)
            await asyncio.sleep(self.script.pause_s * len(self.script.pieces))
            return web.json_response(render(self._whole(call), call))
        except (asyncio.CancelledError, ConnectionError):
            call.is_cancelled = True
            raise

    def _nonsense(self) -> bytes:
        nonsense = self.script.nonsense
        return nonsense if isinstance(nonsense, bytes) else json.dumps(nonsense).encode()

    def _find_refusal(self, body: Json) -> web.Response | None:
        """Return what vLLM says of a request that is too long or that its chat template cannot render."""
        n_chars = sum(len(str(message.get("content"))) for message in body.get("messages", ()))
        n_chars += len(str(body.get("prompt", "")))
        if n_chars > self.script.max_prompt_chars:
            return _error(
                "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
                "tokens.",
                param="input_tokens",
            )
        messages = body.get("messages", ())
        if fault := find_field_fault(messages) or find_template_fault(messages, self.script.template):
            return _error(fault)
        if self.script.no_grammar and any(tool["function"].get("strict") for tool in body.get("tools") or ()):
            return _error(self.script.no_grammar)
        limit, longest = body.get("max_tokens") or 0, self.script.max_model_len
        if longest is not None and limit > longest:
            message = f"max_tokens={limit} cannot be greater than max_model_len={longest}. Please request fewer output "
            return _error(f"{message}tokens.", param="max_tokens")
        return None

    def _sample(self, body: Json, headers: dict[str, str]) -> EngineCall:
        pieces = self.script.pieces
        if self.script.tool is not None:
            pieces = [
                piece
                for tool in (self.script.tool, *self.script.more_tools)
                for piece in ("<tool_call>", *_cut(json.dumps(tool)), "</tool_call>")
            ]
        if self.script.reasoning:
            pieces = ["<think>", self.script.reasoning, "</think>", *pieces]
        choices = [
            Sampled(
                pieces=[*pieces, "<|im_end|>"],
                token_ids=[*(self._random.randrange(3, 49000) for _ in pieces), END_TOKEN],
                logprobs=[-self._random.expovariate(1.0) for _ in range(len(pieces) + 1)],
            )
            for _ in range((body.get("n") or 1) * count_prompts(body.get("prompt")))
        ]
        prompt = [self._random.randrange(3, 49000) for _ in range(11)]
        return EngineCall(body=body, headers=headers, prompt_token_ids=prompt, choices=choices)

    @property
    def _has_call(self) -> bool:
        """Whether the answer is a call and the parser sees it."""
        return self.script.tool is not None and self.script.shown is None

    def _tells_logprobs(self, call: EngineCall) -> bool:
        wish = call.body.get("logprobs")  # of a completion 0 is a wish too
        return self.script.has_logprobs and wish is not None and wish is not False

    def _usage(self, call: EngineCall) -> Json:
        n_prompt, n_sampled = len(call.prompt_token_ids), sum(len(choice.token_ids) for choice in call.choices)
        n_sampled += self.script.miscounts_by
        details = None if self.script.n_cached is None else {"cached_tokens": self.script.n_cached}
        usage = {"prompt_tokens": n_prompt, "total_tokens": n_prompt + n_sampled, "completion_tokens": n_sampled}
        return usage | {"prompt_tokens_details": details}

    def _message(self) -> Json:
        shown = self.script.pieces if self.script.shown is None else self.script.shown
        message: Json = {"role": "assistant", "content": "".join(shown) or None, "refusal": None}
        message |= {"annotations": None, "audio": None, "function_call": None, "reasoning": None}
        if self.script.reasoning:
            message["reasoning"] = self.script.reasoning
        if self.script.tool is not None and self._has_call:
            message["content"] = None
            message["tool_calls"] = [
                {
                    "id": CALL_ID,
                    "type": "function",
                    "function": {"name": tool["name"], "arguments": json.dumps(tool["arguments"])},
                }
                for tool in (self.script.tool, *self.script.more_tools)
            ]
        return message

    def _whole(self, call: EngineCall) -> Json:
        wants = call.body.get("return_token_ids")
        choices = [
            {
                "index": index,
                "message": self._message(),
                "logprobs": {"content": _logprob_items(choice)} if self._tells_logprobs(call) else None,
                "finish_reason": "tool_calls" if self._has_call else self.script.finish_reason,
                "stop_reason": self.script.stop_reason,
                "token_ids": choice.token_ids if wants else None,
                "routed_experts": None,
            }
            for index, choice in enumerate(call.choices)
        ]
        return {
            **_head(call, "chat.completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": "vllm-0.32.0-fake",
            "usage": self._usage(call),
            "prompt_logprobs": None,
            "prompt_token_ids": call.prompt_token_ids if wants else None,
            "prompt_text": None,
            "kv_transfer_params": None,
        }

    async def _stream(
        self, request: web.Request, call: EngineCall, render: Callable[[Json, EngineCall], Json]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async for chunk in self._chunks(call):
            if call.n_chunks_sent == self.script.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if call.n_chunks_sent == self.script.error_after:
                error = {"message": "the engine core died", "type": "InternalServerError", "code": 500}
                await self._write(response, b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
                break
            payload = json.dumps(render(chunk, call), ensure_ascii=False)
            await self._write(response, b"data: " + payload.encode() + b"\n\n")
            call.n_chunks_sent += 1
        await self._write(response, b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        size = self.script.split_at or len(data)
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            if self.script.split_at:
                await asyncio.sleep(0)

    async def _chunks(self, call: EngineCall) -> AsyncIterator[Json]:
        head = _head(call, "chat.completion.chunk")
        wants = call.body.get("return_token_ids")
        for index in range(len(call.choices)):
            first = _choice(index, {"role": "assistant", "content": ""})
            ids = {"prompt_token_ids": call.prompt_token_ids, "prompt_text": None} if wants else {}
            yield {**head, "choices": [first], **ids}
        deltas = self._deltas(call)
        for position in range(len(call.choices[0].pieces)):
            for index, choice in enumerate(call.choices):
                await asyncio.sleep(self.script.pause_s)
                is_last = position == len(choice.pieces) - 1
                chunk = _choice(index, deltas[position])
                if self._tells_logprobs(call):
                    chunk["logprobs"] = {"content": [_logprob_items(choice)[position]]}
                loses = self.script.lose_ids_after is not None and position >= self.script.lose_ids_after
                if wants and not loses:
                    chunk["token_ids"] = [choice.token_ids[position]]
                if is_last:
                    chunk["finish_reason"] = "tool_calls" if self._has_call else self.script.finish_reason
                    chunk["stop_reason"] = self.script.stop_reason
                yield {**head, "choices": [chunk]}
        if (call.body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": self._usage(call), "system_fingerprint": "vllm-0.32.0-fake"}

    def _deltas(self, call: EngineCall) -> list[Json]:
        """What of the text each token shows: with tools the parser lags behind and some chunks are empty."""
        pieces = call.choices[0].pieces
        thoughts: list[Json] = [{}, {"reasoning": self.script.reasoning}, {}] if self.script.reasoning else []
        shown: list[Json] = [*thoughts]
        if self.script.tool is None or self.script.shown is not None:
            texts = self.script.pieces if self.script.shown is None else self.script.shown
            return [*shown, *({"content": text} for text in texts), *({} for _ in pieces)]
        shown.append({})
        for index, tool in enumerate((self.script.tool, *self.script.more_tools)):
            name = {"id": CALL_ID, "type": "function", "index": index, "function": {"name": tool["name"]}}
            shown.append({"content": None, "tool_calls": [name]})
            shown += [
                {"content": None, "tool_calls": [{"index": index, "function": {"arguments": part}}]}
                for part in _cut(json.dumps(tool["arguments"]))
            ]
        return shown[: len(pieces) - 1] + [{} for _ in range(len(pieces) - len(shown))]


def _head(call: EngineCall, kind: str) -> Json:
    return {"id": "chatcmpl-a244df0d46482a10", "object": kind, "created": 1796099164, "model": call.body["model"]}


def _choice(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _logprob_items(choice: Sampled) -> list[Json]:
    return [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in zip(choice.pieces, choice.logprobs, strict=True)
    ]


def _cut(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def _error(message: str, *, status: int = 400, param: str | None = None) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    return web.json_response({"error": error}, status=status)
