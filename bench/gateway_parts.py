"""The servers beside the gateway that its bench needs, and the rows that the gateway needs (run as a program)."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import psycopg
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

N_TOKENS = 64
PROMPT_IDS = list(range(3, 203))
PATH = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "bench"}


def _logprobs(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.0625, "bytes": list(token.encode()), "top_logprobs": []}


USAGE = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": N_TOKENS, "total_tokens": len(PROMPT_IDS) + N_TOKENS}
WHOLE = json.dumps(
    {
        **_head("chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " word" * N_TOKENS},
                "logprobs": {"content": [_logprobs(" word")] * N_TOKENS},
                "finish_reason": "stop",
                "token_ids": list(range(N_TOKENS)),
            }
        ],
        "usage": USAGE,
        "prompt_token_ids": PROMPT_IDS,
    }
).encode()


def _chunk(index: int) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": " word"}, "token_ids": [index]}
    choice["logprobs"] = {"content": [_logprobs(" word")]}
    choice["finish_reason"] = "stop" if index == N_TOKENS - 1 else None
    ids = {} if index else {"prompt_token_ids": PROMPT_IDS}
    return {**_head("chat.completion.chunk"), "choices": [choice], **ids}


_EVENTS = [*map(_chunk, range(N_TOKENS)), {**_head("chat.completion.chunk"), "choices": [], "usage": USAGE}]
CHUNKS = [b"data: %b\n\n" % json.dumps(event).encode() for event in _EVENTS] + [b"data: [DONE]\n\n"]


async def stub(scope: Scope, receive: Receive, send: Send) -> None:
    """An engine that needs no time: bare ASGI."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    head = body[:200]
    is_streamed = b'"stream":true' in head or b'"stream": true' in head
    kind = b"text/event-stream" if is_streamed else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    for chunk in CHUNKS if is_streamed else [WHOLE]:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app.state.session = session
        yield


async def _forward(request: Request) -> Response:
    """Read the body, send it on, hand back what comes: no parsing, no record."""
    body = await request.body()
    answer = await request.app.state.session.post(os.environ["STUB_URL"] + PATH, data=body, headers=JSON)
    if b'"stream": true' in body[:100]:
        return StreamingResponse(answer.content.iter_any(), media_type="text/event-stream")
    return Response(await answer.read(), media_type="application/json")


pass_through = Starlette(routes=[Route(PATH, _forward, methods=["POST"])], lifespan=_lifespan)


class Keeper:
    """Writes packed bodies to a table, by one task: whatever has queued up while the commit before was under way."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._queue: list[tuple[bytes, bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._pack = zstandard.ZstdCompressor(level=1).compress

    async def keep(self, request: bytes, answer: bytes) -> None:
        """Return when both are committed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((request, answer, done))
        self._wake.set()
        await done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._queue = self._queue, []
            async with (
                self._connection.transaction(),
                self._connection.cursor() as cursor,
                cursor.copy("COPY bench_calls FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.set_types(["bytea", "bytea"])
                for request, answer, _ in batch:
                    await copy.write_row((self._pack(request), self._pack(answer)))
            for *_, done in batch:
                if not done.done():  # whoever waits may have gone
                    done.set_result(None)


@asynccontextmanager
async def _keeping(app: Starlette) -> AsyncIterator[None]:
    async with (
        _lifespan(app),
        await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True) as connection,
    ):
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS bench_calls (request bytea STORAGE EXTERNAL, answer bytea STORAGE EXTERNAL)"
        )
        app.state.keeper = Keeper(connection)
        task = asyncio.create_task(app.state.keeper.run())
        yield
        task.cancel()


async def _forward_and_keep(request: Request) -> Response:
    """Forward, and commit both bodies before the answer's last byte: no parsing, no check, no key, no limit."""
    body, state = await request.body(), request.app.state
    answer = await state.session.post(os.environ["STUB_URL"] + PATH, data=body, headers=JSON)
    if b'"stream": true' in body[:100]:
        return StreamingResponse(_keep_chunks(answer, body, state.keeper), media_type="text/event-stream")
    whole = await answer.read()
    await state.keeper.keep(body, whole)
    return Response(whole, media_type="application/json")


async def _keep_chunks(answer: aiohttp.ClientResponse, body: bytes, keeper: Keeper) -> AsyncIterator[bytes]:
    """Yield what comes, the last of it when all is committed."""
    chunks: list[bytes] = []
    async for chunk in answer.content.iter_any():
        if chunks:
            yield chunks[-1]
        chunks.append(chunk)
    await keeper.keep(body, b"".join(chunks))
    yield chunks[-1]


keeping = Starlette(routes=[Route(PATH, _forward_and_keep, methods=["POST"])], lifespan=_keeping)


def make_rows(secret: str) -> None:
    """A team with a project, an agent with a key, a policy with its base weights live, and the stub as its engine."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawplatform.settings")
    import django  # noqa: PLC0415 (the servers above need none of it)

    django.setup()
    from tests.factories.accounts import ApiKeyFactory  # noqa: PLC0415
    from tests.factories.registry import AliasFactory, EngineFactory, VersionFactory  # noqa: PLC0415

    key = ApiKeyFactory.create(secret=secret)
    AliasFactory.create(version=VersionFactory.create(policy__project=key.agent.project, policy__slug="bench"))
    EngineFactory.create(base_url=os.environ["STUB_URL"])


if __name__ == "__main__":
    make_rows(sys.argv[1])
