"""What a bench of servers measures: short turns, server after server, round after round, and what they say together.

Other work on the machine then hits all servers alike, and a median over the rounds forgets the worst of it. Knows load
and numbers; does not know what the servers are.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.load import Load, count_cpu_s, measure, measure_first_token_ms, measure_rss_mb, write_lua

TITLES = "server         stream  KB  in flight    req/s   p50 ms   p99 ms  cpu ms  fail     MB"
WARM_UP_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where one listens and which process it is."""

    name: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is asked, and by how many at once."""

    is_streamed: bool
    request_kb: int
    in_flight: int

    def __str__(self) -> str:
        return f"{'streamed' if self.is_streamed else 'whole'}, {self.request_kb} KB, {self.in_flight} in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One server's turn in one round. `cpu_ms`: its own processor time a request."""

    load: Load
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All turns of one server at one kind of request."""

    server: str
    kind: Kind
    turns: tuple[Turn, ...]
    rss_mb: float

    def median(self, of: Callable[[Turn], float]) -> float:
        return round(statistics.median(map(of, self.turns)), 3)

    def figures(self) -> dict[str, Any]:
        """Return what is reported: medians over the rounds, and all failures."""
        return {
            "server": self.server,
            **asdict(self.kind),
            "per_s": self.median(lambda turn: turn.load.per_s),
            "p50_ms": self.median(lambda turn: turn.load.p50_ms),
            "p99_ms": self.median(lambda turn: turn.load.p99_ms),
            "cpu_ms": self.median(lambda turn: turn.cpu_ms),
            "n_errors": sum(turn.load.n_errors for turn in self.turns),
            "rss_mb": self.rss_mb,
        }

    def __str__(self) -> str:
        said = self.figures()
        return (
            f"{self.server:13}{self.kind.is_streamed!s:>8}{self.kind.request_kb:>4}{self.kind.in_flight:>11}"
            f"{said['per_s']:>9.1f}{said['p50_ms']:>9.3f}{said['p99_ms']:>9.3f}{said['cpu_ms']:>8.3f}"
            f"{said['n_errors']:>6}{self.rss_mb:>7.1f}"
        )


def measure_kind(
    servers: list[Server], kind: Kind, *, folder: Path, headers: dict[str, str], n_rounds: int, seconds: int
) -> list[Cell]:
    """Give each server its turn in each round, every other round the other way about."""
    lua = write_lua(folder, headers=headers, is_streamed=kind.is_streamed, request_kb=kind.request_kb)
    turns: dict[str, list[Turn]] = {server.name: [] for server in servers}
    for server in servers:
        measure(server.port, lua, in_flight=kind.in_flight, seconds=WARM_UP_S)
    for n_round in range(n_rounds):
        for server in servers if n_round % 2 == 0 else reversed(servers):
            used_s = count_cpu_s(server.pid)
            load = measure(server.port, lua, in_flight=kind.in_flight, seconds=seconds)
            used_s = count_cpu_s(server.pid) - used_s
            turns[server.name].append(Turn(load=load, cpu_ms=1000 * used_s / max(1, load.per_s * seconds)))
    return [
        Cell(server=one.name, kind=kind, turns=tuple(turns[one.name]), rss_mb=round(measure_rss_mb(one.pid), 1))
        for one in servers
    ]


def measure_first_tokens(
    servers: list[Server], *, headers: dict[str, str], request_kb: int, n_rounds: int, n_calls: int
) -> dict[str, float | None]:
    """Return each server's median time to the first token in ms, None for one that fails."""
    times: dict[str, list[float | None]] = {server.name: [] for server in servers}
    for n_round in range(n_rounds):
        for server in servers if n_round % 2 == 0 else reversed(servers):
            time_ms = measure_first_token_ms(server.port, headers=headers, n=n_calls, request_kb=request_kb)
            times[server.name].append(time_ms)
    return {name: _median_of_all(found) for name, found in times.items()}


def _median_of_all(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(statistics.median(numbers), 3) if len(numbers) == len(values) else None


def compare(one: Cell, two: Cell, difference: Callable[[Load, Load], float]) -> float:
    """Return the median of what the rounds say of the two."""
    pairs = zip(one.turns, two.turns, strict=True)
    return round(statistics.median(difference(mine.load, other.load) for mine, other in pairs), 3)


def divide_rates(one: Load, two: Load) -> float:
    return one.per_s / two.per_s if two.per_s else 0.0


def subtract_p50(one: Load, two: Load) -> float:
    return one.p50_ms - two.p50_ms


def watch_memory(server: Server, lua: Path, *, n_calls: int, n_looks: int = 10) -> Iterator[tuple[int, float]]:
    """Make so many calls, 32 in flight; yield how many were made and the resident MB, about `n_looks` times."""
    made, look_at = 0.0, 0.0
    while made < n_calls:
        made += 2 * measure(server.port, lua, in_flight=32, seconds=2).per_s
        if made >= look_at or made >= n_calls:
            look_at += n_calls / n_looks
            yield int(made), round(measure_rss_mb(server.pid), 1)
