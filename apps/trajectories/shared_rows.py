"""Rows that many exchanges have in common, each read or written once for a batch of them.

Good for one transaction: what others change meanwhile is not seen, and what is rolled back would still be here.
Trajectories are locked as long as it lasts, so that what is known of them stays true.
"""

from collections.abc import Sequence

from django.db.models import Max

from apps.accounts.models import Agent, ApiKey
from apps.registry.models import Version
from apps.trajectories.messages import Message, make_title
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.search.words import keep_words
from apps.trajectories.trie import store_tools

_SUMS = ("title", "has_error", "last_step_at", "n_steps", "n_prompt_tokens", "n_completion_tokens")


class SharedRows:
    """Agents, keys, versions, tools and trajectories of the exchanges in one transaction.

    `write_sums` must be called at its end.
    """

    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], Agent | None] = {}
        self._keys: dict[tuple[str, str], ApiKey | None] = {}
        self._versions: dict[str, str | None] = {}
        self._tools: set[tuple[str, str]] = set()
        self._trajectories: dict[str, Trajectory] = {}
        self._next_indexes: dict[str, int] = {}
        self._changed: set[str] = set()
        self._new_steps: list[Step] = []

    def find_agent(self, exchange: Exchange) -> Agent | None:
        """Return the exchange's agent if it still exists, in its project."""
        name = (exchange.agent_id, exchange.project_id)
        if name not in self._agents:
            self._agents[name] = Agent.objects.filter(pk=exchange.agent_id, project_id=exchange.project_id).first()
        return self._agents[name]

    def find_key(self, exchange: Exchange, agent: Agent) -> ApiKey | None:
        """Return the exchange's key if it still exists and is the agent's."""
        name = (exchange.key_id, agent.id)
        if name not in self._keys:
            self._keys[name] = ApiKey.objects.filter(pk=exchange.key_id, agent=agent).first()
        return self._keys[name]

    def find_version_id(self, version_id: str) -> str | None:
        """Return the version's id if there is such a version."""
        if version_id not in self._versions:
            known = Version.objects.filter(pk=version_id).values_list("id", flat=True) if version_id else None
            self._versions[version_id] = known.first() if known is not None else None
        return self._versions[version_id]

    def keep_tools(self, *, project_id: str, digest: str, tools_json: str) -> None:
        """Store a list of tool definitions unless that was done just before."""
        if (project_id, digest) not in self._tools:
            store_tools(project_id=project_id, digest=digest, tools_json=tools_json)
            self._tools.add((project_id, digest))

    def lock_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory, locked."""
        known = self._trajectories.get(trajectory_id)
        return known or self.take_locked(Trajectory.objects.select_for_update().get(pk=trajectory_id))

    def take_locked(self, trajectory: Trajectory) -> Trajectory:
        """Return the one object that stands for this locked row."""
        return self._trajectories.setdefault(trajectory.id, trajectory)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Write a trajectory that nobody else knows yet."""
        trajectory.save(force_insert=True)
        self._trajectories[trajectory.id] = trajectory
        self._next_indexes[trajectory.id] = 0

    def add_steps(self, trajectory: Trajectory, steps: Sequence[Step]) -> None:
        """Write steps at the trajectory's end."""
        first = self._find_next_index(trajectory)
        for place, step in enumerate(steps):
            step.trajectory, step.index = trajectory, first + place
        Step.objects.bulk_create(steps)
        self._new_steps += steps
        self._next_indexes[trajectory.id] = first + len(steps)

    def _find_next_index(self, trajectory: Trajectory) -> int:
        if trajectory.id not in self._next_indexes:
            last = Step.objects.filter(trajectory=trajectory).aggregate(last=Max("index"))["last"]
            self._next_indexes[trajectory.id] = 0 if last is None else last + 1
        return self._next_indexes[trajectory.id]

    def count_in(
        self, trajectory: Trajectory, exchange: Exchange, *, messages: Sequence[Message], steps: Sequence[Step]
    ) -> None:
        """Bring the trajectory's sums up to date; they are written by `write_sums`."""
        trajectory.title = trajectory.title or make_title(messages)
        trajectory.has_error = trajectory.has_error or exchange.status == ExchangeStatus.ERROR
        trajectory.last_step_at = max(trajectory.last_step_at, exchange.ended_at)
        trajectory.n_steps += len(steps)
        trajectory.n_prompt_tokens += steps[0].n_prompt_tokens if steps else 0  # choices share it
        trajectory.n_completion_tokens += sum(step.n_completion_tokens for step in steps)
        self._changed.add(trajectory.id)

    def write_sums(self) -> None:
        """Write what has been counted, and what was said to where search finds it."""
        for trajectory_id in sorted(self._changed):
            known = self._trajectories[trajectory_id]
            Trajectory.objects.filter(pk=trajectory_id).update(**{name: getattr(known, name) for name in _SUMS})
        self._changed.clear()
        keep_words(self._new_steps)
        self._new_steps.clear()
