"""How fast the recorder folds, beside what Postgres takes to store the same calls at all.

    make bench-recorder           (or: python -m bench.recorder [--agents N] [--sessions N] [--turns N])

The limit is the gateway's own plain INSERT of the exchanges, 32 a commit, on one connection. Then the same exchanges
are folded by one recorder and by two at once; each call must have become one step. Prints a table, the ratios and,
last, one line `BENCH_RECORDER {json}`. Starts its own Postgres (fsync on) and Valkey.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.calls import make_record
from bench.services import running, start_services

if TYPE_CHECKING:
    from apps.core.contracts.exchange import ExchangeRecord

GROUP = 32
TITLES = "kind     KB  calls   insert/s   fold/s   ratio   two fold/s   two to one"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Conversations of one sort: `system_kb` of system text, and tokens in proportion."""

    name: str
    system_kb: int
    is_marked: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """Calls a second. `ratio`: folded to inserted."""

    kind: str
    system_kb: int
    n_calls: int
    inserted_per_s: float
    folded_per_s: float
    ratio: float
    two_folded_per_s: float
    two_to_one: float


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
            await insert_exchanges(connection, records[at : at + GROUP])
        return time.perf_counter() - start


def fold(n_recorders: int, *, n_calls: int, env: dict[str, str], log: Path) -> float:
    """Fold all that is pending with so many recorders, each a process; return the seconds from first to last."""
    from django.db.models import Max, Min  # noqa: PLC0415

    from apps.trajectories.models import Exchange, Step  # noqa: PLC0415

    done, n_steps = list(Exchange.objects.exclude(folded_at=None).values_list("id", flat=True)), Step.objects.count()
    with ExitStack() as stack:
        for _ in range(n_recorders):
            stack.enter_context(running(sys.executable, "manage.py", "record", env=env, log=log))
        while Exchange.objects.unfolded().exists():
            time.sleep(0.1)
    aside, made = Exchange.objects.set_aside().count(), Step.objects.count() - n_steps
    if (aside, made) != (0, n_calls):
        raise SystemExit(f"{n_calls} calls became {made} steps; {aside} were set aside")
    ends = Exchange.objects.exclude(pk__in=done).aggregate(first=Min("folded_at"), last=Max("folded_at"))
    seconds: float = (ends["last"] - ends["first"]).total_seconds()
    return seconds


def measure(kind: Kind, keys: list[Any], options: argparse.Namespace, *, env: dict[str, str], log: Path) -> Result:
    seconds = []
    for n_recorders in (1, 2):
        records = make_records(kind, keys, n_sessions=options.sessions, n_turns=options.turns)
        inserted_s = asyncio.run(insert(records))
        seconds.append((inserted_s, fold(n_recorders, n_calls=len(records), env=env, log=log)))
    n_calls = len(keys) * options.sessions * options.turns
    inserted, one, two = (n_calls / value for value in (seconds[0][0], seconds[0][1], seconds[1][1]))
    return Result(
        kind=kind.name,
        system_kb=kind.system_kb,
        n_calls=n_calls,
        inserted_per_s=round(inserted, 1),
        folded_per_s=round(one, 1),
        ratio=round(one / inserted, 3),
        two_folded_per_s=round(two, 1),
        two_to_one=round(two / one, 2),
    )


def render(result: Result) -> str:
    return (
        f"{result.kind:9}{result.system_kb:>2}{result.n_calls:>7}{result.inserted_per_s:>11}{result.folded_per_s:>9}"
        f"{result.ratio:>8}{result.two_folded_per_s:>13}{result.two_to_one:>13}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recorder", description=__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=10, help="of each agent, side by side")
    parser.add_argument("--turns", type=int, default=20, help="of each session")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        env = start_services(folder, stack)
        set_up(env)
        keys = make_keys(options.agents)
        print(TITLES)
        results = []
        for kind in KINDS:
            results.append(measure(kind, keys, options, env=env, log=folder / "recorder.log"))
            print(render(results[-1]), flush=True)
        print(f"BENCH_RECORDER {json.dumps([asdict(result) for result in results])}")


if __name__ == "__main__":
    main()
