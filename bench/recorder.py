"""How fast the recorder folds, beside what one gateway process can write of the same calls.

    make bench-recorder           (or: python -m bench.recorder [--agents N] [--sessions N] [--turns N] [--rounds N])

Conversations are inserted into the ledger, 32 calls a commit, and held back until one recorder, or two, are up and have
folded a quarter as many. Then they count: from when all are let go until all are folded, each into one step. Then wrk
has one gateway process write calls with the same requests, 32 in flight, as `make bench-gateway` does. Says what
processor time a call takes of the gateway and of the recorder (Postgres' own is in neither). Prints each round's table
with the ratios, then the medians over the rounds (of the ratios too, which are of one round each) and, last, one line
`BENCH_RECORDER {json}` with these. Needs wrk; starts its own Postgres (fsync on) and Valkey.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.calls import make_record
from bench.gateway import STUB_URL, start_servers
from bench.gateway_parts import make_rows
from bench.load import MARK, count_cpu_s, write_lua_of
from bench.load import measure as measure_load
from bench.rounds import Server
from bench.services import running, start_services

if TYPE_CHECKING:
    from apps.core.contracts.exchange import ExchangeRecord

GROUP = 32
SECRET = "sk-claw-bench"  # noqa: S105 (of a database that lives for a minute)
GATEWAY_S = 3
TITLES = "kind     KB  calls  insert/s  fold/s  two fold/s  cpu ms  gateway/s  cpu ms  fold to gateway  two to gateway"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Conversations of one sort: `system_kb` of system text, and tokens in proportion."""

    name: str
    system_kb: int
    is_marked: bool


@dataclass(frozen=True, kw_only=True)
class Folded:
    """What recorders did: calls a second, and their processor time a call."""

    per_s: float
    cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Calls a second, and processor time a call. `fold_to_gateway`: one recorder's calls to one gateway's."""

    kind: str
    system_kb: int
    n_calls: int
    inserted_per_s: float
    folded_per_s: float
    two_folded_per_s: float
    folding_cpu_ms: float
    gateway_per_s: float
    gateway_cpu_ms: float
    fold_to_gateway: float
    two_to_gateway: float


@dataclass(frozen=True, kw_only=True)
class World:
    """What runs beside the recorders. `env` names the services."""

    folder: Path
    env: dict[str, str]
    gateway: Server


KINDS = (
    Kind(name="small", system_kb=1, is_marked=False),
    Kind(name="openclaw", system_kb=50, is_marked=True),
    Kind(name="unmarked", system_kb=50, is_marked=False),
)


def set_up(env: dict[str, str]) -> None:
    os.environ.update(env, DJANGO_SETTINGS_MODULE="clawplatform.settings")
    import django  # noqa: PLC0415 (the address of Postgres is known only now)
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)


def start_gateway(stack: ExitStack, env: dict[str, str], *, folder: Path) -> Server:
    """Start one gateway process before a stub engine that needs no time."""
    make_rows(SECRET)
    _, gateway = start_servers(stack, env, folder=folder, names=["stub", "gateway"])
    return gateway


def make_keys(n: int) -> list[Any]:
    from tests.factories.accounts import ApiKeyFactory  # noqa: PLC0415

    return [ApiKeyFactory.create() for _ in range(n)]


def make_records(kind: Kind, keys: list[Any], *, n_sessions: int, n_turns: int) -> list["ExchangeRecord"]:
    """Return conversations that go on side by side: turn after turn, session after session, agent after agent."""
    from apps.core.ids import new_id  # noqa: PLC0415

    sessions = [_converse(kind, f"{new_id('sess')} ", n_turns=n_turns) for _ in range(n_sessions * len(keys))]
    return [
        _make_record(kind, keys[place % len(keys)], session=place, **turn)
        for turns in zip(*sessions, strict=True)
        for place, turn in enumerate(turns)
    ]


def _converse(kind: Kind, name: str, *, n_turns: int) -> Iterator[dict[str, Any]]:
    system = {"role": "system", "content": "You help people with their work. " * (kind.system_kb * 1024 // 33)}
    history: list[dict[str, Any]] = [system]
    prompt = list(range(kind.system_kb * 256))
    for turn in range(n_turns):
        history = [*history, {"role": "user", "content": f"{name} asks {turn}: " + "please look at this. " * 20}]
        prompt = [*prompt, *range(100)]
        yield {"messages": history, "prompt": prompt, "name": name}
        history = [*history, {"role": "assistant", "content": "OK"}]
        prompt = [*prompt, *range(64)]


def _make_record(
    kind: Kind, key: Any, *, session: int, messages: list[dict[str, Any]], prompt: list[int], name: str
) -> "ExchangeRecord":
    return make_record(
        key,
        messages=messages,
        answer={"content": "OK"},
        prompt=prompt,
        completion=list(range(64)),
        session_key=f"{name}{session}" if kind.is_marked else "",
    )


async def insert(records: list["ExchangeRecord"]) -> float:
    """Write the records as the gateway does, group after group; return the seconds."""
    from apps.gateway.database import connect  # noqa: PLC0415
    from apps.trajectories.exchange_log import insert_exchanges  # noqa: PLC0415

    async with await connect() as connection:
        start = time.perf_counter()
        for at in range(0, len(records), GROUP):
            group = records[at : at + GROUP]
            await insert_exchanges(connection, group, conversations={one.id: find_conversation(one) for one in group})
        return time.perf_counter() - start


def find_conversation(record: "ExchangeRecord") -> str:
    """Return what the gateway finds that all calls of the record's conversation share."""
    from apps.gateway.placement import find_affinity  # noqa: PLC0415

    return find_affinity(record.session_key, json.loads(record.request)["messages"])


def insert_held(kind: Kind, keys: list[Any], *, n_sessions: int, n_turns: int) -> tuple[list[str], float]:
    """Write calls that no recorder sees yet; return their ids and the seconds that writing took."""
    from apps.trajectories.models import Exchange  # noqa: PLC0415

    records = make_records(kind, keys, n_sessions=n_sessions, n_turns=n_turns)
    seconds = asyncio.run(insert(records))
    ids = [record.id for record in records]
    Exchange.objects.filter(pk__in=ids).update(folded_at=datetime.now(UTC))
    return ids, seconds


def release(ids: list[str]) -> datetime:
    """Let recorders see the calls, all at once; return when that was."""
    from django.db import connection  # noqa: PLC0415

    from apps.trajectories.exchange_log import CHANNEL  # noqa: PLC0415
    from apps.trajectories.models import Exchange  # noqa: PLC0415

    Exchange.objects.filter(pk__in=ids).update(folded_at=None)
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")
    return datetime.now(UTC)


def fold(n_recorders: int, ids: list[str], *, warm_up: list[str], world: World) -> Folded:
    """Have so many recorders, each a process that has folded the calls of `warm_up`, fold the calls."""
    from django.db.models import Max  # noqa: PLC0415

    from apps.trajectories.models import Exchange, Step  # noqa: PLC0415

    with ExitStack() as stack:
        command, log = (sys.executable, "manage.py", "record"), world.folder / "recorder.log"
        pids = [stack.enter_context(running(*command, env=world.env, log=log)) for _ in range(n_recorders)]
        release(warm_up)
        wait_until_folded()
        n_steps, used_s = Step.objects.count(), sum(map(count_cpu_s, pids))
        began = release(ids)
        wait_until_folded()
        used_s = sum(map(count_cpu_s, pids)) - used_s
    aside, made = Exchange.objects.set_aside().count(), Step.objects.count() - n_steps
    if (aside, made) != (0, len(ids)):
        raise SystemExit(f"{len(ids)} calls became {made} steps; {aside} were set aside")
    ended = Exchange.objects.filter(pk__in=ids).aggregate(last=Max("folded_at"))["last"]
    return Folded(per_s=len(ids) / (ended - began).total_seconds(), cpu_ms=1000 * used_s / len(ids))


def wait_until_folded() -> None:
    from apps.trajectories.models import Exchange  # noqa: PLC0415

    while Exchange.objects.unfolded().exists():
        time.sleep(0.1)


def write_by_gateway(kind: Kind, gateway: Server, *, n_turns: int, folder: Path) -> tuple[float, float]:
    """Have the gateway write calls like these; return how many a second, and its processor time in ms."""
    from apps.trajectories.models import Exchange  # noqa: PLC0415

    bodies = [{"model": "bench", "messages": turn["messages"]} for turn in _converse(kind, MARK, n_turns=n_turns)]
    headers = {"Authorization": f"Bearer {SECRET}"}
    lua = write_lua_of(folder / "calls.lua", headers=headers, turns=list(map(json.dumps, bodies)))
    measure_load(gateway.port, lua, in_flight=GROUP, seconds=1)
    used_s = count_cpu_s(gateway.pid)
    load = measure_load(gateway.port, lua, in_flight=GROUP, seconds=GATEWAY_S)
    used_s = count_cpu_s(gateway.pid) - used_s
    if load.n_errors:
        raise SystemExit(f"the gateway failed {load.n_errors} calls")
    while Exchange.objects.unfolded().delete()[0]:  # calls that were cut off at the end come a little later
        time.sleep(0.5)
    return load.per_s, 1000 * used_s / (load.per_s * GATEWAY_S)


def measure(kind: Kind, keys: list[Any], options: argparse.Namespace, *, world: World) -> Result:
    folds: list[Folded] = []
    inserted_s = 0.0
    for n_recorders in (1, 2):
        warm_up, _ = insert_held(kind, keys, n_sessions=max(1, options.sessions // 4), n_turns=options.turns)
        ids, seconds = insert_held(kind, keys, n_sessions=options.sessions, n_turns=options.turns)
        inserted_s += seconds / 2
        folds.append(fold(n_recorders, ids, warm_up=warm_up, world=world))
    n_calls = len(ids)
    one, two = (folded.per_s for folded in folds)
    per_s, cpu_ms = write_by_gateway(kind, world.gateway, n_turns=options.turns, folder=world.folder)
    return Result(
        kind=kind.name,
        system_kb=kind.system_kb,
        n_calls=n_calls,
        inserted_per_s=round(n_calls / inserted_s, 1),
        folded_per_s=round(one, 1),
        two_folded_per_s=round(two, 1),
        folding_cpu_ms=round(folds[0].cpu_ms, 2),
        gateway_per_s=round(per_s, 1),
        gateway_cpu_ms=round(cpu_ms, 2),
        fold_to_gateway=round(one / per_s, 2),
        two_to_gateway=round(two / per_s, 2),
    )


def measure_round(keys: list[Any], options: argparse.Namespace, *, world: World, title: str) -> list[Result]:
    print(f"{title}\n{TITLES}")
    results = []
    for kind in KINDS:
        results.append(measure(kind, keys, options, world=world))
        print(render(results[-1]), flush=True)
    return results


def take_medians(rounds: Sequence[Result]) -> Result:
    """Return each figure's median over the rounds of one kind."""
    table = [asdict(result) for result in rounds]
    figures = [name for name, value in table[0].items() if isinstance(value, float)]
    return replace(rounds[0], **{name: round(statistics.median(row[name] for row in table), 2) for name in figures})


def render(result: Result) -> str:
    return (
        f"{result.kind:9}{result.system_kb:>2}{result.n_calls:>7}{result.inserted_per_s:>10}{result.folded_per_s:>8}"
        f"{result.two_folded_per_s:>12}{result.folding_cpu_ms:>8}{result.gateway_per_s:>11}{result.gateway_cpu_ms:>8}"
        f"{result.fold_to_gateway:>17}{result.two_to_gateway:>16}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recorder", description=__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=40, help="of each agent, side by side")
    parser.add_argument("--turns", type=int, default=20, help="of each session")
    parser.add_argument("--rounds", type=int, default=3, help="in which each kind has its turn")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        env = start_services(folder, stack) | {"STUB_URL": STUB_URL}
        set_up(env)
        keys = make_keys(options.agents)
        world = World(folder=folder, env=env, gateway=start_gateway(stack, env, folder=folder))
        rounds = [measure_round(keys, options, world=world, title=f"round {n + 1}") for n in range(options.rounds)]
        medians = [take_medians(of_kind) for of_kind in zip(*rounds, strict=True)]
        print("\n".join(["medians", TITLES, *map(render, medians)]))
        print(f"BENCH_RECORDER {json.dumps([asdict(result) for result in medians])}")


if __name__ == "__main__":
    main()
