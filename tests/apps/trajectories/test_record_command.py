"""`manage.py record` as real processes on a real Postgres: killed, doubled, cut off from the database."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, Step, Trajectory
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory

ROOT = Path(__file__).parents[3]

KILLED_AGENTS, KILLED_TURNS = 9, 120  # a recorder folds four hundred calls at a time

pytestmark = pytest.mark.django_db(transaction=True)


def database_url() -> str:
    """Return the test database's address, as a child process takes it."""
    entry = connection.settings_dict
    query = urlencode({"host": entry["HOST"]})
    name = f"{quote(entry['USER'])}:{quote(entry['PASSWORD'])}@"
    port = f":{entry['PORT']}" if entry["PORT"] else ""
    return f"postgresql://{name}{'localhost' if port else ''}{port}/{entry['NAME']}?{query}"


def start_recorder(log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "manage.py", "record"],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url()},
            stdout=output,
            stderr=output,
        )


@contextmanager
def recorders(log: Path, *, n: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    processes = [start_recorder(log) for _ in range(n)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def write_conversation(key: ApiKey, *, n_turns: int) -> None:
    """Write one conversation turn by turn, as an agent does: the next call only after the last answer."""
    history: list[dict[str, Any]] = []
    prompt: list[int] = []
    for turn in range(n_turns):
        history.append({"role": "user", "content": f"{key.id} asks {turn}"})
        prompt += [turn]
        ExchangeFactory.create(
            key=key,
            messages=list(history),
            answers=[{"content": f"answer {turn}"}],
            prompt_ids=prompt,
            completions=[[9]],
        )
        history.append({"role": "assistant", "content": f"answer {turn}"})
        prompt += [9]


def is_all_folded() -> bool:
    return not Exchange.objects.unfolded().exists()


def assert_each_conversation_is_one_line(*, n_conversations: int, n_turns: int) -> None:
    assert not Exchange.objects.set_aside().exists()
    assert Step.objects.count() == n_conversations * n_turns
    assert Trajectory.objects.count() == n_conversations
    for trajectory in Trajectory.objects.all():
        steps = list(trajectory.steps.order_by("index"))
        assert trajectory.n_steps == n_turns
        assert [step.index for step in steps] == list(range(n_turns))
        assert [step.parent_id for step in steps] == [None, *(step.id for step in steps[:-1])]
        assert [len(step.tail_token_ids) for step in steps] == [4] * n_turns


def test_killed_again_and_again_it_folds_everything_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    keys = [ApiKeyFactory.create() for _ in range(KILLED_AGENTS)]
    for key in keys:
        write_conversation(key, n_turns=KILLED_TURNS)
    log = tmp_path / "log"
    n_kills = 0
    while not is_all_folded():
        already = Step.objects.count()
        with recorders(log, n=1) as (process,):
            wait_for(lambda already=already: Step.objects.count() > already or is_all_folded())  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        n_kills += 1
    assert n_kills >= 2
    assert_each_conversation_is_one_line(n_conversations=KILLED_AGENTS, n_turns=KILLED_TURNS)


def test_two_recorders_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    keys = [ApiKeyFactory.create() for _ in range(4)]
    with recorders(tmp_path / "log", n=2):
        for key in keys:
            write_conversation(key, n_turns=40)
        wait_for(is_all_folded)
    assert_each_conversation_is_one_line(n_conversations=4, n_turns=40)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_it_stops_when_told_to(tmp_path: Path) -> None:
    ExchangeFactory.create()
    with recorders(tmp_path / "log", n=1) as (process,):
        wait_for(is_all_folded)
        process.terminate()
        assert process.wait(timeout=5) == 0
    assert "recorder.stopped" in (tmp_path / "log").read_text()


def test_it_goes_on_when_postgres_is_back(tmp_path: Path) -> None:
    key = ApiKeyFactory.create()
    with recorders(tmp_path / "log", n=1) as (process,):
        ExchangeFactory.create(key=key)
        wait_for(is_all_folded)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        ExchangeFactory.create(key=key)
        wait_for(is_all_folded)
        assert process.poll() is None
    assert "recorder.waiting_for_postgres" in (tmp_path / "log").read_text()
    assert Step.objects.count() == 2
