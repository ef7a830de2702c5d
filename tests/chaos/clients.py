"""Agents as threads: they converse without a pause, try again when a call comes to nothing, and note what they have."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.dialects import Dialect, Said, Turn, messages_of

Json = dict[str, Any]
LONGEST_CONVERSATION = 4
PAUSE_S = 0.05  # before a call is tried again
BUSY_PAUSE_S = 0.3  # where it was told to come again later
TIMEOUT_S = 100  # the clients' packages wait for ten minutes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer that a client has to its end. `before`: the exchange of the turn before, "" for a first turn."""

    exchange_id: str
    conversation: str
    before: str
    dialect: Dialect
    messages: list[Json]
    said: Said
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A call that came to nothing, and what had come of it. `status` is 0 where no head came."""

    why: str
    exchange_id: str
    status: int
    said: Said
    messages: list[Json]


class Client(threading.Thread):
    """One agent."""

    def __init__(self, urls: Sequence[str], secret: str, *, dialects: Sequence[Dialect], seed: str) -> None:
        super().__init__(name=f"client {seed}")
        self.urls = urls
        self.headers = {"Authorization": f"Bearer {secret}", "x-api-key": secret}
        self.dialects = dialects
        self.chance = random.Random(seed)
        self.answers: list[Answer] = []
        self.failures: list[Failure] = []
        self.crash: BaseException | None = None
        self.must_stop = threading.Event()
        self.at = 0  # which gateway

    def run(self) -> None:
        n = 0
        try:
            with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as self.http:
                while not self.must_stop.is_set():
                    n += 1
                    self._converse(f"{self.name} talk {n}")
        except BaseException as error:  # noqa: BLE001 - told by the drill, in the test's own thread
            self.crash = error

    def _converse(self, name: str) -> None:
        dialect = self.chance.choice(self.dialects)
        turns: list[Turn] = []
        before = ""
        for n in range(self.chance.randint(1, LONGEST_CONVERSATION)):
            turns.append(Turn(question=f"{name} question {n}"))
            answer = self._ask_until_answered(dialect, turns, name=name, before=before)
            if answer is None or self.must_stop.is_set():
                return
            before = answer.exchange_id
            turns[-1] = Turn(question=turns[-1].question, said=answer.said)

    def _ask_until_answered(self, dialect: Dialect, turns: list[Turn], *, name: str, before: str) -> Answer | None:
        """Return the answer, None when the client was stopped before one came."""
        n_words, is_streamed = self.chance.randint(3, 12), self.chance.random() < 0.7
        body = dialect.ask(turns, n_words=n_words, is_streamed=is_streamed)
        for n_retries in range(10_000):
            start = time.monotonic()
            exchange_id, status, said = self._call(dialect, body, n_retries=n_retries)
            if said.is_whole:
                answer = Answer(
                    exchange_id=exchange_id,
                    conversation=name,
                    before=before,
                    dialect=dialect,
                    messages=messages_of(turns),
                    said=said,
                    seconds=time.monotonic() - start,
                )
                self.answers.append(answer)
                return answer
            self.failures.append(
                Failure(why=said.error, exchange_id=exchange_id, status=status, said=said, messages=messages_of(turns))
            )
            if self.must_stop.wait(PAUSE_S if status != 503 else BUSY_PAUSE_S):
                return None
        return None

    def _call(self, dialect: Dialect, body: Json, *, n_retries: int) -> tuple[str, int, Said]:
        """Make one call; return its exchange id and its status, as far as its head came, and what it said."""
        # As behind a load balancer: any gateway, and after a failure the next.
        if n_retries:
            self.at += 1
        else:
            self.at = self.chance.randrange(len(self.urls))
        url = self.urls[self.at % len(self.urls)]
        headers = self.headers | {"x-stainless-retry-count": str(n_retries)}
        said, exchange_id, status = Said(), "", 0
        try:
            with self.http.stream("POST", url + dialect.path, json=body, headers=headers) as response:
                exchange_id, status = response.headers.get("x-request-id", ""), response.status_code
                if status != 200:
                    return exchange_id, status, Said(error=response.read().decode())
                if not body["stream"]:
                    response.read()
                    return exchange_id, status, dialect.read_whole(response.json())
                said = self._listen(response, dialect)
        except httpx.HTTPError as error:
            said.error = f"{type(error).__name__}: {error}"
        return exchange_id, status, said

    def _listen(self, response: httpx.Response, dialect: Dialect) -> Said:
        """Hear a stream as far as it comes: with its end mark the client has it all, whatever happens then."""
        said = Said()
        try:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    dialect.hear(line[6:], said)
        except httpx.HTTPError as error:
            said.error = said.error or f"{type(error).__name__}: {error}"
        if not said.is_whole:
            said.error = said.error or "the stream ended without its end mark"
        return said
