"""Rows that many exchanges have in common, each read or written once for a batch of them.

Good for one transaction: what others change meanwhile is not seen, and what is rolled back would still be here.
Trajectories are locked as long as it lasts, so that what is known of them stays true.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db.models import Max

from apps.accounts.models import Agent, ApiKey
from apps.registry.models import Version
from apps.trajectories.contexts import ContextCache
from apps.trajectories.copying import run_statement
from apps.trajectories.known_steps import KnownSteps
from apps.trajectories.messages import Message, make_title
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.openings import Openings
from apps.trajectories.sessions import is_open_at
from apps.trajectories.trie import Context, store_tools

_WRITE_SUMS = """
    UPDATE trajectories_trajectory row SET
        title = new.title, has_error = new.has_error, last_step_at = new.last_step_at, n_steps = new.n_steps,
        n_prompt_tokens = new.n_prompt_tokens, n_completion_tokens = new.n_completion_tokens
    FROM unnest(%b::text[], %b::text[], %b::bool[], %b::timestamptz[], %b::int[], %b::bigint[], %b::bigint[])
        AS new (id, title, has_error, last_step_at, n_steps, n_prompt_tokens, n_completion_tokens)
    WHERE row.id = new.id
"""
_SUMS = ("id", "title", "has_error", "last_step_at", "n_steps", "n_prompt_tokens", "n_completion_tokens")

_contexts = ContextCache()

Session = tuple[str, str]
"""The key and the name that it gives the session."""


class SharedRows:
    """Agents, keys, versions, tools, openings, trajectories and steps of the exchanges in one transaction.

    `write` must be called at its end, and `flush` before the database is asked about steps behind this object's back.
    """

    def __init__(self) -> None:
        self.steps = KnownSteps()
        self.openings = Openings()
        self.contexts = _contexts
        self._agents: dict[tuple[str, str], Agent | None] = {}
        self._keys: dict[tuple[str, str], ApiKey | None] = {}
        self._versions: dict[str, str | None] = {}
        self._tools: set[tuple[str, str]] = set()
        self._trajectories: dict[str, Trajectory] = {}
        self._sessions: dict[Session, list[Trajectory]] = {}
        self._next_indexes: dict[str, int] = {}
        self._changed: set[str] = set()

    def read_callers(self, exchanges: Sequence[Exchange]) -> None:
        """Read the agents and keys of all the exchanges, in one go each."""
        agents = Agent.objects.in_bulk({exchange.agent_id for exchange in exchanges})
        keys = ApiKey.objects.in_bulk({exchange.key_id for exchange in exchanges})
        for exchange in exchanges:
            agent, key = agents.get(exchange.agent_id), keys.get(exchange.key_id)
            is_there = agent is not None and agent.project_id == exchange.project_id
            self._agents[exchange.agent_id, exchange.project_id] = agent if is_there else None
            is_its_own = key is not None and key.agent_id == exchange.agent_id
            self._keys[exchange.key_id, exchange.agent_id] = key if is_its_own else None

    def find_agent(self, exchange: Exchange) -> Agent | None:
        """Return the exchange's agent if it still exists, in its project."""
        return self._agents[exchange.agent_id, exchange.project_id]

    def find_key(self, exchange: Exchange) -> ApiKey | None:
        """Return the exchange's key if it still exists and is the agent's."""
        return self._keys[exchange.key_id, exchange.agent_id]

    def find_version_id(self, version_id: str) -> str | None:
        """Return the version's id if there is such a version."""
        if version_id not in self._versions:
            known = Version.objects.filter(pk=version_id).values_list("id", flat=True) if version_id else None
            self._versions[version_id] = known.first() if known is not None else None
        return self._versions[version_id]

    def keep_tools(self, *, project_id: str, digest: str, tools_json: str) -> None:
        """Store a list of tool definitions unless that was done just before."""
        if digest and (project_id, digest) not in self._tools:
            store_tools({digest: tools_json}, project_id=project_id)
            self._tools.add((project_id, digest))

    def lock_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory, locked."""
        if trajectory_id not in self._trajectories:
            self.lock_trajectories([trajectory_id])
        return self._trajectories[trajectory_id]

    def lock_trajectories(self, trajectory_ids: Iterable[str]) -> None:
        """Lock the trajectories that are not locked yet, in one go; those that are gone are passed over."""
        unknown = set(trajectory_ids) - self._trajectories.keys()
        if unknown:
            for trajectory in Trajectory.objects.select_for_update().filter(pk__in=unknown).order_by("pk"):
                self._trajectories[trajectory.id] = trajectory

    def find_trajectory(self, trajectory_id: str, *, project_id: str) -> Trajectory | None:
        """Return the trajectory, locked, if it exists in the project."""
        self.lock_trajectories([trajectory_id])
        trajectory = self._trajectories.get(trajectory_id)
        return trajectory if trajectory is not None and trajectory.project_id == project_id else None

    def lock_sessions(self, sessions: Iterable[Session], *, agent_ids: Iterable[str], since: datetime) -> None:
        """Lock the trajectories of these agents' sessions that are open or were so at `since`, in one go."""
        unknown = set(sessions) - self._sessions.keys()
        if not unknown:
            return
        rows = Trajectory.objects.select_for_update().open_at(since).filter(agent_id__in=set(agent_ids))
        named = rows.filter(key_id__in={key for key, _ in unknown}, session_key__in={name for _, name in unknown})
        found: dict[Session, list[Trajectory]] = defaultdict(list)
        for row in named.order_by("pk"):
            found[row.key_id or "", row.session_key].append(self._trajectories.setdefault(row.id, row))
        self._sessions |= {session: found[session] for session in unknown}

    def find_session(self, session: Session, *, agent: Agent, moment: datetime) -> Trajectory | None:
        """Return the latest trajectory of the session that a call which ended then goes on with, locked."""
        self.lock_sessions([session], agent_ids=[agent.id], since=moment)
        found = [row for row in reversed(self._sessions[session]) if row.agent_id == agent.id]
        return next((row for row in found if is_open_at(completed_at=row.completed_at, moment=moment)), None)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Take a trajectory that nobody else knows yet."""
        self.steps.add_trajectory(trajectory)
        self._trajectories[trajectory.id] = trajectory
        self._next_indexes[trajectory.id] = 0
        if trajectory.session_key:
            self._sessions[trajectory.key_id or "", trajectory.session_key].append(trajectory)

    def add_steps(self, trajectory: Trajectory, steps: Sequence[Step]) -> None:
        """Put steps at the trajectory's end."""
        first = self._find_next_index(trajectory)
        for place, step in enumerate(steps):
            step.trajectory, step.index = trajectory, first + place
        self.steps.add(steps)
        self._next_indexes[trajectory.id] = first + len(steps)

    def _find_next_index(self, trajectory: Trajectory) -> int:
        if trajectory.id not in self._next_indexes:
            unknown = self._trajectories.keys() - self._next_indexes.keys()
            rows = Step.objects.filter(trajectory_id__in=unknown).order_by().values("trajectory_id")
            found = dict(rows.annotate(last=Max("index")).values_list("trajectory_id", "last"))
            self._next_indexes |= {name: found.get(name, -1) + 1 for name in unknown}
        return self._next_indexes[trajectory.id]

    def count_in(
        self, trajectory: Trajectory, exchange: Exchange, *, messages: Sequence[Message], steps: Sequence[Step]
    ) -> None:
        """Bring the trajectory's sums up to date; they are written by `write`."""
        trajectory.title = trajectory.title or make_title(messages)
        trajectory.has_error = trajectory.has_error or exchange.status == ExchangeStatus.ERROR
        trajectory.last_step_at = max(trajectory.last_step_at, exchange.ended_at)
        trajectory.n_steps += len(steps)
        trajectory.n_prompt_tokens += steps[0].n_prompt_tokens if steps else 0  # choices share it
        trajectory.n_completion_tokens += sum(step.n_completion_tokens for step in steps)
        self._changed.add(trajectory.id)

    def find_context(self, step_id: str) -> Context:
        """Return what the step's children may share."""
        if not self.contexts.is_kept(step_id):
            self.flush()
        return self.contexts.find(step_id)

    def exclude_step(self, step_id: str) -> None:
        """Keep a step out of training."""
        if not self.steps.exclude(step_id):
            Step.objects.filter(pk=step_id).update(is_excluded=True)

    def flush(self) -> None:
        """Write the trajectories and steps that are new."""
        self._changed -= {trajectory.id for trajectory in self.steps.write()}

    def write(self) -> None:
        """Write what is new and what has been counted."""
        self.flush()
        changed = [self._trajectories[trajectory_id] for trajectory_id in sorted(self._changed)]
        self._changed.clear()
        if changed:
            columns = [[getattr(trajectory, name) for trajectory in changed] for name in _SUMS]
            run_statement(_WRITE_SUMS, columns)
