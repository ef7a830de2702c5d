"""A large made-up pool for measuring: trajectories of some steps each, with words, labels and rewards.

A few hundred conversations are made here; Postgres makes all others out of them, each with a case number that it alone
mentions. What is made depends on a trajectory's number alone, and numbers stand in `session_key`: a seeding that was
stopped goes on behind the last number that is there. Steps have no digests and no exchanges: nothing will go on from
them.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Model, TextChoices

from apps.accounts.models import Agent, Project
from apps.accounts.services import create_agent
from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.ids import ALPHABET
from apps.feedback.models import Label, Source
from apps.trajectories.bulk.models import TrajectoryTag
from apps.trajectories.models import Channel, ExchangeStatus, PrefixBreak, SideCall, Step, Trajectory, TrajectoryState
from apps.trajectories.months import make_earlier_months
from apps.trajectories.search.models import TrajectoryText

CHUNK = 4000  # trajectories in one transaction
N_PATTERNS = 400
CASE = "CASENUMBER"  # stands in a pattern for the number
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_APART = timedelta(seconds=25)
_BETWEEN_STEPS = timedelta(seconds=30)
_N_AGENTS = 8
_ACTOR = "platform"
_TEXT = (
    "order refund invoice customer parcel delay file folder search open read write test build error timeout server "
    "deploy branch merge review answer question price table chart report summary email reply calendar meeting travel "
    "ticket flight hotel city weather recipe garden music film book chapter page note list task done later please"
)
_FREQUENT = tuple(_TEXT.split())
_RARE = tuple(f"{one}{other}" for one in _FREQUENT for other in _FREQUENT)

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much there is to be at the end."""

    n_trajectories: int
    n_steps: int


def seed_pool(project: Project, plan: Plan) -> Iterator[int]:
    """Make what is missing, chunk by chunk; yields how many trajectories there are after each."""
    agents = [_find_agent(project, number) for number in range(_N_AGENTS)]
    done = _count_done(agents)
    if not done:
        make_earlier_months(since=FIRST)
    _lay_out([_Pattern(number, agents=agents, n_steps=plan.n_steps) for number in range(N_PATTERNS)])
    while done < plan.n_trajectories:
        until = min(done + CHUNK, plan.n_trajectories)
        _multiply(done, until)
        done = until
        yield done


def _find_agent(project: Project, number: int) -> Agent:
    name = f"Seed {number}"
    return Agent.objects.filter(project=project, name=name).first() or create_agent(
        project=project, name=name, actor=_ACTOR
    )


def _count_done(agents: list[Agent]) -> int:
    last = Trajectory.objects.filter(agent__in=agents, session_key__startswith="seed-").order_by("-id").first()
    return int(last.session_key.removeprefix("seed-")) + 1 if last else 0


class _Pattern:
    """One conversation with all that hangs on it. Its ids and times are put in by Postgres."""

    def __init__(self, number: int, *, agents: list[Agent], n_steps: int) -> None:
        self._chance = random.Random(number)  # noqa: S311 (nothing is kept secret by it)
        self.number = number
        self.said: list[str] = []
        self.steps = list(self._make_steps(n_steps))
        agent = agents[self._chance.randrange(len(agents))]
        self.trajectory: Row = {
            "pattern": number,
            "project_id": agent.project_id,
            "agent_id": agent.pk,
            "channel": Channel.VAL if number % 10 == 0 else Channel.TRAIN,
            "state": TrajectoryState.COMPLETE,
            "title": self.said[0].removeprefix(CASE).strip()[:200],
            "is_excluded": number % 50 == 0,
            "has_error": number % 40 == 0,
            "n_steps": n_steps,
            "n_prompt_tokens": sum(step["n_prompt_tokens"] for step in self.steps),
            "n_completion_tokens": sum(step["n_completion_tokens"] for step in self.steps),
        }
        self.text: Row = {"pattern": number, "words": _index_words(self.said)}
        self.label: Row = {"pattern": number, "project_id": agent.project_id, "source": Source.HUMAN}
        self.tag: Row = {"pattern": number, "name": f"batch {number % 20}"}

    def _say(self) -> str:
        words = [self._chance.choice(_RARE if self._chance.random() < 0.1 else _FREQUENT) for _ in range(26)]
        text = " ".join(words if self.said else [CASE, *words])
        self.said.append(text)
        return text

    def _make_steps(self, n_steps: int) -> Iterator[Row]:
        context = 0
        for index in range(n_steps):
            asked, answered = self._say(), self._say()
            tail = [self._chance.randrange(32_000) for _ in range(60)]
            completion = [self._chance.randrange(32_000) for _ in range(40)]
            is_last = index and index == n_steps - 1
            yield {
                "pattern": self.number,
                "index": index,
                "side_call": SideCall.TITLE if is_last and self.number % 30 == 0 else SideCall.NONE,
                "prefix_break": PrefixBreak.EDIT if is_last and self.number % 25 == 0 else PrefixBreak.NONE,
                "shared_tokens": context,
                "tail_token_ids": pack_ids(tail),
                "completion_token_ids": pack_ids(completion),
                "logprobs": pack_logprobs([-self._chance.random() for _ in completion]),
                "shared_messages": 2 * index,
                "tail_messages": json.dumps([{"role": "user", "content": asked}]).encode(),
                "answer": json.dumps({"role": "assistant", "content": answered}).encode(),
                "n_prompt_tokens": context + len(tail),
                "n_completion_tokens": len(completion),
                "finish_reason": "stop",
                "status": ExchangeStatus.COMPLETE,
                "is_exact": True,
            }
            context += len(tail) + len(completion)


def _index_words(said: Iterable[str]) -> str:
    """Return what was said as a tsvector's text: each word with its places."""
    places: dict[str, list[str]] = {}
    for place, word in enumerate(" ".join(said).split(), start=1):
        if word != CASE:
            places.setdefault(word, []).append(str(place))
    return " ".join(f"'{word}':{','.join(at[:200])}" for word, at in places.items())


_TIME = f"timestamptz '{FIRST:%Y-%m-%d %H:%M}+00' + n * interval '{_APART.total_seconds()} s'"
_STEP_TIME = f"{_TIME} + pattern.index * interval '{_BETWEEN_STEPS.total_seconds()} s'"
_LAST_TIME = f"{_TIME} + pattern.n_steps * interval '{_BETWEEN_STEPS.total_seconds()} s'"
_TRAJECTORY_ID = "'traj_' || stamp || '0000000'"
_PLACE = "lpad(to_hex(pattern.index), 7, '0')"
_PLACE_BEFORE = "lpad(to_hex(pattern.index - 1), 7, '0')"
_FIRST_WORDS = (
    f"convert_to(replace(convert_from(pattern.tail_messages, 'UTF8'), '{CASE}', lpad(n::text, 9, '0')), 'UTF8')"
)
_REWARD = "round(((n * 7919 % 2001) / 1000.0 - 1)::numeric, 2)"
_IS_REWARDED = "n % 5 < 2"
_DIGITS = " || ".join(f"substr('{ALPHABET}', ((ms >> {shift}) & 31)::int + 1, 1)" for shift in range(45, -1, -5))
# An id begins with its time, as `core.ids` spells it, and the number; a step's and a call's end with their place.
_LAY_OUT = "CREATE TEMP TABLE IF NOT EXISTS seed_{table} AS SELECT 0 AS pattern, * FROM {table} LIMIT 0"
_MULTIPLY = """
    WITH numbered AS MATERIALIZED (
        SELECT n, {digits} || lpad(to_hex(n), 9, '0') AS stamp
        FROM generate_series(%s::bigint, %s) n, LATERAL (SELECT floor(extract(epoch FROM {time}) * 1000)::bigint AS ms)
    )
    INSERT INTO {table} ({names})
    SELECT {values} FROM numbered JOIN seed_{table} pattern ON pattern.pattern = n %% {n_patterns} WHERE {condition}
"""
# What differs from the pattern, and which of the numbers have such a row.
_MADE: tuple[tuple[type[Model], str, Mapping[str, str]], ...] = (
    (
        Trajectory,
        "true",
        {
            "id": _TRAJECTORY_ID,
            "session_key": "'seed-' || lpad(n::text, 9, '0')",
            "reward": f"CASE WHEN {_IS_REWARDED} THEN {_REWARD} END",
            "started_at": _TIME,
            "last_step_at": _LAST_TIME,
            "completed_at": _LAST_TIME,
        },
    ),
    (
        Step,
        "true",
        {
            "id": f"'step_' || stamp || {_PLACE}",
            "trajectory_id": _TRAJECTORY_ID,
            "exchange_id": f"'exch_' || stamp || {_PLACE}",
            "parent_id": f"CASE WHEN pattern.index > 0 THEN 'step_' || stamp || {_PLACE_BEFORE} END",
            "tail_messages": f"CASE WHEN pattern.index > 0 THEN pattern.tail_messages ELSE {_FIRST_WORDS} END",
            "started_at": _STEP_TIME,
            "ended_at": f"{_STEP_TIME} + interval '3 s'",
        },
    ),
    (
        TrajectoryText,
        "true",
        {"trajectory_id": _TRAJECTORY_ID, "words": "pattern.words || (lpad(n::text, 9, '0') || ':1')::tsvector"},
    ),
    (
        Label,
        _IS_REWARDED,
        {
            "id": "'labl_' || stamp || '0000000'",
            "trajectory_id": _TRAJECTORY_ID,
            "value": _REWARD,
            "created_at": _LAST_TIME.replace("pattern.n_steps", "60"),
        },
    ),
    (TrajectoryTag, "n % 10 = 3", {"trajectory_id": _TRAJECTORY_ID}),
)


def _lay_out(patterns: list[_Pattern]) -> None:
    """Put the patterns where Postgres multiplies them, for this connection alone."""
    rows: dict[type[Model], list[Row]] = {
        Trajectory: [pattern.trajectory for pattern in patterns],
        Step: [step for pattern in patterns for step in pattern.steps],
        TrajectoryText: [pattern.text for pattern in patterns],
        Label: [pattern.label for pattern in patterns],
        TrajectoryTag: [pattern.tag for pattern in patterns],
    }
    with connection.cursor() as cursor:
        for model, _, _ in _MADE:
            table = model._meta.db_table  # noqa: SLF001
            cursor.execute(_LAY_OUT.format(table=table))
            cursor.execute(f"TRUNCATE seed_{table}")
            _copy(model, rows[model])
            cursor.execute(f"CREATE INDEX ON seed_{table} (pattern)")
            cursor.execute(f"ANALYZE seed_{table}")


def _columns(model: type[Model]) -> Row:
    """Return the model's columns with their defaults; Postgres counts a number as id by itself."""
    template = model()
    fields = [field for field in model._meta.concrete_fields if field.column != "id" or field.max_length]  # noqa: SLF001
    return {str(field.column): _plain(getattr(template, field.attname)) for field in fields}


def _copy(model: type[Model], rows: list[Row]) -> None:
    defaults = {"pattern": 0} | _columns(model)
    names = ", ".join(f'"{name}"' for name in defaults)
    with connection.cursor() as cursor:
        statement = f'COPY "seed_{model._meta.db_table}" ({names}) FROM STDIN'  # noqa: SLF001
        with cursor.cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([_plain(value) for value in {**defaults, **row}.values()])


def _plain(value: Any) -> Any:
    """Return what COPY takes: a choice as its text (psycopg would write its name), JSON as text."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value) if isinstance(value, TextChoices) else value


@transaction.atomic
def _multiply(start: int, end: int) -> None:
    """Make the trajectories with the numbers from `start` to before `end`."""
    with connection.cursor() as cursor:
        for model, condition, made in _MADE:
            table = model._meta.db_table  # noqa: SLF001
            values = {name: made.get(name, f'pattern."{name}"') for name in _columns(model)}
            statement = _MULTIPLY.format(
                table=table,
                digits=_DIGITS,
                time=_TIME,
                names=", ".join(f'"{name}"' for name in values),
                values=", ".join(values.values()).replace("%", "%%"),
                n_patterns=N_PATTERNS,
                condition=condition.replace("%", "%%"),
            )
            cursor.execute(statement, [start, end - 1])
