"""One drill: agents at work, harm done to the world at random moments, then the count."""

import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx

from tests.chaos.clients import Answer, Client, Failure
from tests.chaos.dialects import ALL, Dialect
from tests.chaos.tally import Tally, count
from tests.chaos.world import World, wait_until

N_CLIENTS = 6
PLENTY = 10**9  # a limit that nobody reaches: the calls go through Valkey all the same


class Drill:
    """`with Drill(world, seed=…) as drill:` do harm, `drill.finish()`. The agents work meanwhile."""

    def __init__(
        self,
        world: World,
        *,
        seed: int,
        dialects: Sequence[Dialect] = ALL,
        urls: Sequence[str] = (),
        n: int = N_CLIENTS,
    ) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.secret = f"claw-chaos-{seed}-{time.monotonic_ns()}"
        self.key = world.make_key(self.secret, requests_per_minute=PLENTY)
        self.n_faults = 0
        self.clients = [
            Client(urls or world.urls, self.secret, dialects=dialects, seed=f"{seed}/{number}") for number in range(n)
        ]

    def __enter__(self) -> Self:
        self._make_known()
        for client in self.clients:
            client.start()
        self.wait_for_answers(len(self.clients))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        self.world.mend()

    @property
    def answers(self) -> list[Answer]:
        return [answer for client in self.clients for answer in client.answers]

    @property
    def failures(self) -> list[Failure]:
        return [failure for client in self.clients for failure in client.failures]

    def wait_for_answers(self, n: int, *, timeout_s: float = 60) -> None:
        """Return when so many more calls have been answered."""
        enough = self._count_answers() + n
        wait_until(lambda: self._count_answers() >= enough, what=f"{n} more answers", timeout_s=timeout_s)

    def pick_moment(self, longest_s: float = 0.8) -> None:
        """Let a random time pass, and count what comes next as a fault."""
        time.sleep(self.chance.uniform(0, longest_s))
        self.n_faults += 1

    def finish(self) -> Tally:
        """Stop the agents, wait until all is in the pool, count."""
        self._stop()
        self.world.mend()
        self.world.wait_until_quiet()
        tally = count(self.answers, self.failures, key_ids=[self.key.id])
        tally.n_faults = self.n_faults
        refused = [path.name for path in self.world.spool_dir.glob("refused/*")]
        if refused:
            tally.note("refused by Postgres", refused)
        return tally

    def _make_known(self) -> None:
        """Return when each gateway has let the key in: one that never saw it cannot while Postgres is away."""
        for url in self.world.urls:
            head = {"Authorization": f"Bearer {self.secret}"}
            httpx.get(f"{url}/v1/models", headers=head, timeout=30, trust_env=False).raise_for_status()

    def _count_answers(self) -> int:
        return sum(len(client.answers) for client in self.clients)

    def _stop(self) -> None:
        for client in self.clients:
            client.must_stop.set()
        for client in self.clients:
            client.join(60)
            assert not client.is_alive(), f"{client.name} does not stop"
        crashes = [client.crash for client in self.clients if client.crash is not None]
        if crashes:
            raise crashes[0]
