"""How many bytes the pool takes for agents' conversations, how fast it takes them in and gives them out.

    make bench-pool               (or: python -m bench.pool [--conversations N] [--turns N])

The conversations have the shape of the captured ones of OpenClaw: a long system text and tools, turns that call a tool
and read its result, and a message at the end of every request that the next one no longer has. Naive is what storing
each call whole takes; unique tokens are the nodes of the best trie there can be. Only the token columns are held
against them. Then all of it leaves as a file, in messages and in tokens, and comes into another project. Prints a
table and, last, one line `BENCH_POOL {json}`. Starts its own Postgres (fsync on) and Valkey.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.calls import make_record
from bench.recorder import insert, make_keys, set_up
from bench.services import start_services

if TYPE_CHECKING:
    from apps.core.contracts.exchange import ExchangeRecord

SYSTEM = {"role": "system", "content": "You are an agent that works for its user. Be exact and brief. " * 500}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Reads or writes something that the user asked for. " * 12,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for number in range(20)
]
PASSING = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n{}\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
END = 2  # the token at a message's end
CHARACTERS_A_TOKEN = 4
N_TIMED = 20


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes; those of tokens leave log-probs out, which no two calls share."""

    naive_bytes: int
    stored_bytes: int
    unique_token_bytes: int
    stored_token_bytes: int

    @property
    def to_naive(self) -> float:
        return self.stored_bytes / self.naive_bytes

    @property
    def to_unique_tokens(self) -> float:
        return self.stored_token_bytes / self.unique_token_bytes


def read_tokens(text: str) -> list[int]:
    """Stand in for a tokenizer: the same pieces of text are the same ids."""
    pieces = (text[at : at + CHARACTERS_A_TOKEN] for at in range(0, len(text), CHARACTERS_A_TOKEN))
    return [3 + zlib.crc32(piece.encode()) % 150_000 for piece in pieces]


def render(message: dict[str, Any]) -> list[int]:
    """Return a message's tokens as a chat template makes them: who speaks, what, and the end."""
    said = {name: value for name, value in message.items() if name != "role"}
    return [*read_tokens(message["role"]), *read_tokens(json.dumps(said)), END]


def converse(key: Any, name: str, *, n_turns: int) -> Iterator["ExchangeRecord"]:
    """Yield the calls of one conversation."""
    history: list[dict[str, Any]] = [SYSTEM]
    for turn in range(n_turns):
        if turn % 2 == 0:
            history.append({"role": "user", "content": f"{name}, request {turn}: please look into this. " * 5})
        passing = {"role": "user", "content": PASSING.format(f"{name} at {turn}: the time, the runtime. " * 4)}
        messages = [*history, passing]
        answer = make_answer(name, turn)
        spoken = {"role": "assistant", **answer}
        prompt = [*read_tokens(json.dumps(TOOLS)), *(token for message in messages for token in render(message))]
        opened = read_tokens("assistant")
        completion = render(spoken)[len(opened) :]
        yield make_record(
            key, messages=messages, answer=answer, prompt=[*prompt, *opened], completion=completion, tools=TOOLS
        )
        history.append(spoken)
        if answer.get("tool_calls"):
            result = f"Line of a file that {name} has read at {turn}. " * 30
            history.append({"role": "tool", "tool_call_id": f"call{turn}{name}", "content": result})


def make_answer(name: str, turn: int) -> dict[str, Any]:
    if turn % 2:
        return {"content": f"This is what I have found for {name} at {turn}. " * 8}
    arguments = json.dumps({"path": f"/home/{name}/{turn}"})
    function = {"name": f"tool_{turn % len(TOOLS)}", "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": f"call{turn}{name}", "type": "function", "function": function}]}


def count_unique(sequences: list[bytes]) -> int:
    """Return how many bytes the nodes of the sequences' trie take (int32): in sorted order, what each adds."""
    from apps.trajectories.trie import split_tokens  # noqa: PLC0415

    total, before = 0, b""
    for sequence in sorted(sequences):
        total += len(split_tokens(before, sequence)[1])
        before = sequence
    return total


def measure_sizes(records: list["ExchangeRecord"]) -> Sizes:
    """Compare what the pool holds, which is these calls alone, with what they are."""
    from django.db.models import Sum  # noqa: PLC0415
    from django.db.models.functions import Length  # noqa: PLC0415

    from apps.trajectories.models import Opening, Step, Tools  # noqa: PLC0415

    def count(rows: Any, *names: str) -> int:
        sums = rows.aggregate(**{name: Sum(Length(name)) for name in names})
        return sum(value or 0 for value in sums.values())

    sequences = [bytes(record.prompt_token_ids or b"") + record.completion_token_ids[0] for record in records]
    tokens = count(Step.objects, "tail_token_ids", "completion_token_ids") + count(Opening.objects, "token_ids")
    logprobs = count(Step.objects, "logprobs")
    words = count(Step.objects, "tail_messages", "answer") + count(Opening.objects, "messages")
    answers = count(Step.objects, "answer")
    return Sizes(
        naive_bytes=sum(map(len, sequences)) + logprobs + sum(len(record.request) for record in records) + answers,
        stored_bytes=tokens + logprobs + words + count(Tools.objects, "body"),
        unique_token_bytes=count_unique(sequences),
        stored_token_bytes=tokens,
    )


def take_in(records: list["ExchangeRecord"]) -> tuple[float, float]:
    """Write the calls and fold them; return how many a second of each."""
    from apps.trajectories.models import Exchange, Step  # noqa: PLC0415
    from apps.trajectories.recorder import fold_pending  # noqa: PLC0415

    n_before = Step.objects.count()
    inserted = len(records) / asyncio.run(insert(records))
    start = time.perf_counter()
    while fold_pending():
        pass
    folded = len(records) / (time.perf_counter() - start)
    if Step.objects.count() - n_before != len(records) or Exchange.objects.set_aside().exists():
        raise SystemExit("not every call became a step")
    return inserted, folded


def time_queries() -> dict[str, float]:
    """Return the medians of some questions to the pool, in milliseconds."""
    from apps.core.paging import page_newest_first  # noqa: PLC0415
    from apps.trajectories.models import Step, Trajectory  # noqa: PLC0415
    from apps.trajectories.trie import iterate_steps, load_context, load_steps  # noqa: PLC0415

    trajectory = Trajectory.objects.order_by("id")[Trajectory.objects.count() // 2]
    last = Step.objects.filter(trajectory=trajectory).latest("index")
    rows = Trajectory.objects.of_project(trajectory.project)
    return {
        "list_50": median_ms(lambda: page_newest_first(rows, before=None, limit=50)),
        "whole_trajectory": median_ms(lambda: load_steps(trajectory)),
        "last_step": median_ms(lambda: list(iterate_steps(trajectory, first=last.index, limit=1))),
        "context_of_last_step": median_ms(lambda: load_context(last.id)),
    }


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How fast the pool's trajectories leave it as JSON lines and come into another project. `import_to_copy`: what the
    import takes to what Postgres takes for the same bytes in one COPY."""

    shape: str
    n_bytes: int
    exported_per_s: float
    imported_per_s: float
    import_to_copy: float


def time_transfer(project: Any, shape: str, folder: Path) -> Transfer:
    """Export what is in the project, import it elsewhere, and copy the same lines as they are."""
    from apps.feedback.exports import SHAPES  # noqa: PLC0415
    from apps.trajectories.datasets.row_files import write_rows  # noqa: PLC0415
    from apps.trajectories.datasets.rows import Source  # noqa: PLC0415
    from apps.trajectories.models import Step, Trajectory  # noqa: PLC0415

    path = folder / f"{shape}.jsonl"
    rows = Trajectory.objects.of_project(project).order_by("pk")
    n_steps = Step.objects.filter(trajectory__project=project).count()
    lines = (line for trajectory in rows for line in SHAPES[shape].render(Source(trajectory=trajectory)))
    exported_s = time_s(lambda: write_rows(path, lines, shape=shape, file_format="jsonl"))
    imported_s, copied_s = time_s(lambda: import_file(path)), time_s(lambda: copy_lines(path))
    return Transfer(
        shape=shape,
        n_bytes=path.stat().st_size,
        exported_per_s=round(n_steps / exported_s, 1),
        imported_per_s=round(n_steps / imported_s, 1),
        import_to_copy=round(imported_s / copied_s, 1),
    )


def time_s(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def import_file(path: Path) -> None:
    """Import a file into a project of its own."""
    from apps.accounts.access import Caller  # noqa: PLC0415
    from apps.accounts.models import Scope  # noqa: PLC0415
    from apps.feedback.importing import reward_imported  # noqa: PLC0415
    from apps.trajectories.datasets.import_job import run_import  # noqa: PLC0415
    from apps.trajectories.datasets.importing import ImportSettings, start_import  # noqa: PLC0415
    from tests.factories.accounts import ApiKeyFactory  # noqa: PLC0415

    key = ApiKeyFactory.create(scope=Scope.MANAGE)
    data = path.read_bytes()
    source = start_import(
        agent=key.agent,
        caller=Caller(key=key),
        chunks=[data],
        file_name=path.name,
        n_bytes=len(data),
        settings=ImportSettings(),
    )
    run_import(source.pk, reward=reward_imported, slice_s=3600)
    source.refresh_from_db()
    if source.n_imported != source.n_total:
        raise SystemExit(f"{source.n_imported} of {source.n_total} trajectories were imported: {source.error}")


def copy_lines(path: Path) -> None:
    """Write the file's lines into a table of texts."""
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_lines (line text)")
        with path.open() as file, cursor.copy("COPY bench_lines FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["text"])
            for line in file:
                copy.write_row([line])


def median_ms(ask: Callable[[], object]) -> float:
    times = []
    for _ in range(N_TIMED):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return round(1000 * sorted(times)[N_TIMED // 2], 2)


def show_sizes(title: str, sizes: Sizes) -> None:
    print(
        f"{title:18}{sizes.naive_bytes / 1e6:>9.2f} MB naive{sizes.stored_bytes / 1e6:>8.2f} MB stored"
        f"   stored / naive {sizes.to_naive:.3f}   token bytes / unique tokens {sizes.to_unique_tokens:.3f}",
        flush=True,
    )


def run(options: argparse.Namespace, folder: Path) -> None:
    (key,) = make_keys(1)
    first = list(converse(key, "first", n_turns=options.turns))
    take_in(first)
    one = measure_sizes(first)
    show_sizes("one conversation", one)
    turns = [list(converse(key, f"c{n}", n_turns=options.turns)) for n in range(options.conversations)]
    many = [record for side_by_side in zip(*turns, strict=True) for record in side_by_side]
    inserted, folded = take_in(many)
    all_of_them = measure_sizes([*first, *many])
    show_sizes(f"{options.conversations + 1} conversations", all_of_them)
    print(f"{'folded':18}{folded:9.1f} calls/s   inserted {inserted:.1f} calls/s   ratio {folded / inserted:.2f}")
    queries = time_queries()
    for name, value in queries.items():
        print(f"{name:22}{value:>8.2f} ms")
    transfers = [time_transfer(key.agent.project, shape, folder) for shape in ("messages", "tokens")]
    for moved in transfers:
        print(
            f"{moved.shape:22}{moved.n_bytes / 1e6:>8.2f} MB   exported {moved.exported_per_s:.1f} steps/s   "
            f"imported {moved.imported_per_s:.1f} steps/s   import / COPY {moved.import_to_copy:.1f}"
        )
    result = {
        "n_turns": options.turns,
        "one": {**asdict(one), "to_naive": one.to_naive, "to_unique_tokens": one.to_unique_tokens},
        "many": {
            **asdict(all_of_them),
            "n_conversations": options.conversations + 1,
            "to_naive": all_of_them.to_naive,
            "to_unique_tokens": all_of_them.to_unique_tokens,
        },
        "folded_per_s": round(folded, 1),
        "inserted_per_s": round(inserted, 1),
        "queries_ms": queries,
        "transfers": [asdict(moved) for moved in transfers],
    }
    print(f"BENCH_POOL {json.dumps(result)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pool", description=__doc__)
    parser.add_argument("--conversations", type=int, default=30, help="that go on side by side")
    parser.add_argument("--turns", type=int, default=20, help="calls of each")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        set_up(start_services(folder, stack))
        run(options, folder)


if __name__ == "__main__":
    main()
