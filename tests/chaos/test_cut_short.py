"""Answers that are cut short: by the client, by the engine. What had come is kept, and marked for what it is."""

import time
from collections.abc import Sequence
from functools import partial

import httpx

from apps.core.contracts.arrays import unpack_ids
from apps.trajectories.models import Exchange, Step
from tests.chaos.clients import Failure
from tests.chaos.conftest import Note
from tests.chaos.dialects import ALL, Said, Turn, messages_of
from tests.chaos.drill import Drill
from tests.chaos.tally import Tally
from tests.chaos.world import World, wait_until
from tests.fakes.word_engine import read_ids, spell_prompt

N_LONG = 2000  # words: an answer that takes seconds
CANCELLED_WITHIN_S = 20  # on a busy machine; an answer that came to its end is never told as cancelled


def test_clients_that_leave(world: World, seed: int, rounds: int, note: Note) -> None:
    """The engine is told to stop at once, and what had come is in the pool as an aborted call."""
    with Drill(world, seed=seed) as drill:
        left: list[Failure] = []
        for _ in range(rounds):
            left += leave_at_once(world, drill, n=10)
        tally = drill.finish()
    check_kept(left, tally, status="aborted")
    note(tally)
    assert not drill.failures, drill.failures[:3]


def leave_at_once(world: World, drill: Drill, *, n: int) -> list[Failure]:
    """Leave `n` answers, and see each time that the engine has stopped; it tells the latest calls alone."""
    left = []
    for _ in range(n):
        call = leave_in_the_middle(world, drill)
        wait_until(partial(is_cancelled, world, call), what="the engine stops", timeout_s=CANCELLED_WITHIN_S)
        left.append(call)
        drill.n_faults += 1
    return left


def leave_in_the_middle(world: World, drill: Drill) -> Failure:
    """Hear some of a long answer, then hang up."""
    dialect = drill.chance.choice(ALL)
    turns = [Turn(question=f"long answer {drill.n_faults} of {drill.secret}")]
    body = dialect.ask(turns, n_words=N_LONG, is_streamed=True)
    url = drill.chance.choice(world.urls) + dialect.path
    n_words = drill.chance.randint(1, 60)
    headers = drill.clients[0].headers
    with httpx.stream("POST", url, json=body, headers=headers, trust_env=False, timeout=30) as response:
        said = Said()
        for line in response.iter_lines():
            if line.startswith("data: "):
                dialect.hear(line[6:], said)
            if len(said.text.split()) >= n_words:
                break
        return Failure(
            why="left",
            exchange_id=response.headers["x-request-id"],
            status=response.status_code,
            said=said,
            messages=messages_of(turns),
        )


def is_cancelled(world: World, left: Failure) -> bool:
    calls = httpx.get(f"{world.engine_url}/calls", trust_env=False, timeout=30).json()
    return bool(calls[left.said.text.split()[0]]["is_cancelled"])


def check_kept(cut: Sequence[Failure], tally: Tally, *, status: str) -> None:
    """Each call that was cut short is in the pool once: at least what its client heard, no more than was sampled."""
    for failure in cut:
        row = Exchange.objects.filter(pk=failure.exchange_id).first()
        if row is None:
            tally.note("a call that was cut short is lost", failure.exchange_id)
            continue
        heard = read_ids(failure.said.text)
        kept = list(unpack_ids(bytes(row.completion_token_ids[0]))) if row.completion_token_ids else []
        if row.status != status or row.is_exact:
            tally.note("not marked", f"{row.id}: {row.status}")
        if kept[: len(heard)] != heard:
            tally.note("less than was heard", f"{row.id}: {len(kept)} of {len(heard)} tokens")
        if list(unpack_ids(bytes(row.prompt_token_ids or b""))) != spell_prompt(failure.messages):
            tally.note("another prompt", row.id)
        if Step.objects.filter(exchange_id=row.id, status=status).count() != (1 if kept else 0):
            tally.note("a call that was cut short is not one step", row.id)


def test_the_engine_killed(world: World, seed: int, rounds: int, note: Note) -> None:
    """Streams that have begun end with an error of their dialect, and are kept. Others wait for the next engine."""
    with Drill(world, seed=seed) as drill:
        for _ in range(rounds):
            drill.pick_moment()
            world.engine.kill()
            time.sleep(drill.chance.uniform(0, 0.5))
            world.engine.restart()
            drill.wait_for_answers(30)
        tally = drill.finish()
    for failure in drill.failures:
        if failure.status != 200 or "engine" not in failure.why:
            tally.note("a failure of another kind", failure)
    check_kept(drill.failures, tally, status="error")
    note(tally)
    assert tally.n_failures <= rounds * len(drill.clients)
