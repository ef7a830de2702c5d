"""A large made-up pool for measuring: trajectories of some steps each, with words, labels and rewards, by COPY.

What is made depends on a trajectory's number alone, and numbers stand in `session_key`: a seeding that was stopped goes
on behind the last number that is there. Steps have no digests and no exchanges: nothing will go on from them.
"""

import json
import random
from collections.abc import Iterable, Iterator
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
from apps.trajectories.models import Channel, ExchangeStatus, Step, Trajectory, TrajectoryState
from apps.trajectories.search.models import TrajectoryText

CHUNK = 1000  # trajectories in one transaction
_FIRST = datetime(2026, 9, 1, tzinfo=UTC)
_APART = timedelta(seconds=7)
_N_AGENTS = 8
_ACTOR = "platform"
_SHARE_REWARDED = 0.4
_TEXT = (
    "order refund invoice customer parcel delay file folder search open read write test build error timeout server "
    "deploy branch merge review answer question price table chart report summary email reply calendar meeting travel "
    "ticket flight hotel city weather recipe garden music film book chapter page note list task done later please"
)
_WORDS = tuple(_TEXT.split())

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
    while done < plan.n_trajectories:
        until = min(done + CHUNK, plan.n_trajectories)
        _write([_Made(number, agents=agents, n_steps=plan.n_steps) for number in range(done, until)])
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


class _Made:
    """One trajectory with all that hangs on it."""

    def __init__(self, number: int, *, agents: list[Agent], n_steps: int) -> None:
        self._chance = random.Random(number)  # noqa: S311 (nothing is kept secret by it)
        self._at = _FIRST + _APART * number
        agent = agents[self._chance.randrange(len(agents))]
        is_rewarded = self._chance.random() < _SHARE_REWARDED
        self.said: list[str] = []
        trajectory_id = self._new_id("traj", self._at)
        self.steps = list(self._make_steps(trajectory_id, n_steps))
        self.trajectory: Row = {
            "id": trajectory_id,
            "project_id": agent.project_id,
            "agent_id": agent.pk,
            "session_key": f"seed-{number:09d}",
            "channel": Channel.VAL if number % 10 == 0 else Channel.TRAIN,
            "state": TrajectoryState.COMPLETE,
            "title": self.said[0][:200],
            "reward": round(self._chance.uniform(-1, 1), 2) if is_rewarded else None,
            "is_excluded": number % 50 == 0,
            "has_error": number % 40 == 0,
            "n_steps": n_steps,
            "n_prompt_tokens": sum(step["n_prompt_tokens"] for step in self.steps),
            "n_completion_tokens": sum(step["n_completion_tokens"] for step in self.steps),
            "started_at": self._at,
            "last_step_at": self.steps[-1]["ended_at"],
            "completed_at": self.steps[-1]["ended_at"],
        }

    def _new_id(self, prefix: str, at: datetime) -> str:
        number = int(at.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | self._chance.getrandbits(62)
        return f"{prefix}_{''.join(ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))}"

    def _say(self) -> str:
        text = " ".join(self._chance.choices(_WORDS, k=self._chance.randrange(12, 40)))
        self.said.append(text)
        return text

    def _make_steps(self, trajectory_id: str, n_steps: int) -> Iterator[Row]:
        context, parent_id = 0, None
        for index in range(n_steps):
            at = self._at + timedelta(seconds=30 * index)
            asked, answered = self._say(), self._say()
            tail = [self._chance.randrange(32_000) for _ in range(60)]
            completion = [self._chance.randrange(32_000) for _ in range(40)]
            step_id = self._new_id("step", at)
            yield {
                "id": step_id,
                "trajectory_id": trajectory_id,
                "exchange_id": self._new_id("exch", at),
                "index": index,
                "parent_id": parent_id,
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
                "started_at": at,
                "ended_at": at + timedelta(seconds=3),
            }
            context, parent_id = context + len(tail) + len(completion), step_id

    @property
    def words(self) -> Row:
        """What was said as a tsvector's text: each word with its places."""
        places: dict[str, list[str]] = {}
        for place, word in enumerate(" ".join(self.said).split(), start=1):
            places.setdefault(word, []).append(str(place))
        words = " ".join(f"'{word}':{','.join(at[:200])}" for word, at in places.items())
        return {"trajectory_id": self.trajectory["id"], "words": words}

    @property
    def labels(self) -> list[Row]:
        """The label behind the reward, if it has one."""
        if self.trajectory["reward"] is None:
            return []
        at = self.trajectory["completed_at"]
        return [
            {
                "id": self._new_id("labl", at),
                "project_id": self.trajectory["project_id"],
                "trajectory_id": self.trajectory["id"],
                "value": self.trajectory["reward"],
                "source": Source.HUMAN,
                "created_at": at,
            }
        ]


@transaction.atomic
def _write(made: list[_Made]) -> None:
    _copy(Trajectory, (one.trajectory for one in made))
    _copy(Step, (step for one in made for step in one.steps))
    _copy(TrajectoryText, (one.words for one in made))
    _copy(Label, (label for one in made for label in one.labels))


def _copy(model: type[Model], rows: Iterable[Row]) -> None:
    """COPY rows into the model's table; a column that a row lacks gets the model's default."""
    template = model()
    fields = [field for field in model._meta.concrete_fields if field.column != "id" or field.max_length]  # noqa: SLF001
    defaults: Row = {str(field.column): _plain(getattr(template, field.attname)) for field in fields}
    names = ", ".join(f'"{name}"' for name in defaults)
    with connection.cursor() as cursor:
        statement = f'COPY "{model._meta.db_table}" ({names}) FROM STDIN'  # noqa: SLF001
        with cursor.cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([_plain(value) for value in {**defaults, **row}.values()])


def _plain(value: Any) -> Any:
    """Return what COPY takes: a choice as its text (psycopg would write its name), JSON as text."""
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value) if isinstance(value, TextChoices) else value
