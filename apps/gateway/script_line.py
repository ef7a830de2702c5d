"""Runs Lua scripts in Redis: what has queued up while the batch before was under way goes in one pipeline.

One connection whatever the number of calls. Knows no script's meaning. While Redis does not answer, callers hear so at
once, and it is asked again a second later.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio as redis
import structlog
from django.conf import settings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

log = structlog.get_logger(__name__)

ANSWER_S = 0.25
PAUSE_S = 1.0
MAX_BATCH = 128
POST_WAIT_S = 0.02  # what nobody waits for goes with the next question, or so much later
_FAULTS = (redis.RedisError, OSError, TimeoutError)
_RETRY = Retry(NoBackoff(), 1)  # at once: the connection may be older than a restart of Redis


class RedisAwayError(Exception):
    """Redis does not answer now."""


class Script:
    """A Lua script and the name by which Redis keeps it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class _Question:
    script: Script
    keys: Sequence[str]
    args: Sequence[str | int]
    answer: "asyncio.Future[Any]"


class ScriptLine:
    """One pipeline after the other, in the order of the questions. `scripts`: all that will be asked for."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._are_loaded = False
        self._client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=ANSWER_S, retry=_RETRY)
        self._waiting: list[_Question] = []
        self._wake = asyncio.Event()
        self._ask_again_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_batches())

    async def stop(self) -> None:
        """Run what is queued, then let go of the connection."""
        if self._task is not None:
            if self._waiting:
                self._wake.set()
                with contextlib.suppress(RedisAwayError):
                    await self._waiting[-1].answer
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        await self._client.aclose()

    async def run(self, script: Script, *, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Return what the script returns; raises RedisAwayError."""
        answer = self._queue(script, keys, args)
        self._wake.set()
        return await answer

    def post(self, script: Script, *, keys: Sequence[str], args: Sequence[str | int]) -> None:
        """Have the script run soon; what it returns, and whether it could run, nobody hears."""
        self._queue(script, keys, args).add_done_callback(_forget)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POST_WAIT_S, self._send_posted)

    def _send_posted(self) -> None:
        self._timer = None
        self._wake.set()

    def _queue(self, script: Script, keys: Sequence[str], args: Sequence[str | int]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if time.monotonic() < self._ask_again_at:
            answer.set_exception(RedisAwayError("it did not answer a moment ago"))
        else:
            self._waiting.append(_Question(script, keys, args, answer))
        return answer

    async def _run_batches(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._waiting[:MAX_BATCH]
            if not batch:
                self._wake.clear()
                continue
            try:
                async with asyncio.timeout(ANSWER_S):
                    answers = await self._ask(batch)
            except _FAULTS as error:
                self._give_up(error)
                await self._client.connection_pool.disconnect()
            except Exception as error:  # the edge: callers go on without an answer whatever it is
                log.exception("redis.scripts_crashed")
                self._give_up(error)
            else:
                for question, answer in zip(batch, answers, strict=True):
                    _reply(question, answer)
                del self._waiting[: len(batch)]
            if not self._waiting:
                self._wake.clear()

    async def _ask(self, batch: list[_Question]) -> list[Any]:
        if not self._are_loaded:
            await self._load()
        answers = await self._ask_once(batch)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # Redis has been restarted
            await self._load()
            again = await self._ask_once([batch[place] for place in unknown])
            for place, answer in zip(unknown, again, strict=True):
                answers[place] = answer
        return answers

    async def _load(self) -> None:
        for script in self._scripts:
            await self._client.script_load(script.text)
        self._are_loaded = True

    async def _ask_once(self, batch: list[_Question]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for question in batch:
            pipeline.evalsha(question.script.sha1, len(question.keys), *question.keys, *question.args)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    def _give_up(self, error: Exception) -> None:
        """Let everybody who waits go on without an answer, and ask nothing for a while."""
        self._ask_again_at = time.monotonic() + PAUSE_S
        reason = str(error).strip() or type(error).__name__
        for question in self._waiting:
            _reply(question, RedisAwayError(reason))
        self._waiting.clear()


def _reply(question: _Question, answer: Any) -> None:
    if question.answer.done():  # nobody waits any more
        return
    if isinstance(answer, redis.RedisError):
        log.error("redis.script_failed", reason=str(answer))
        answer = RedisAwayError(str(answer))
    if isinstance(answer, Exception):
        question.answer.set_exception(answer)
    else:
        question.answer.set_result(answer)


def _forget(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()
