"""Writes trajectories that came in from a file, as if they had been captured: token trie, messages, tools, search.

All of them are written or none. Knows no file, no format and no rewards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from apps.core.contracts.arrays import ID_BYTES, unpack_ids
from apps.core.ids import new_id
from apps.registry.models import Policy, Version
from apps.registry.queries import find_named_versions
from apps.registry.vocabulary import read_vocabulary_size
from apps.trajectories import messages as chat
from apps.trajectories.copying import check_keys_by_one_plan, copy_rows
from apps.trajectories.datasets.incoming import BadLine, Incoming, IncomingStep, count_common
from apps.trajectories.datasets.models import Import
from apps.trajectories.models import Channel, Step, Trajectory, TrajectoryState
from apps.trajectories.search.words import keep_words
from apps.trajectories.token_index import TokenIndex
from apps.trajectories.trie import count_shared, split_spelled, split_tokens, store_tools

_LOOK_BACK = 50  # steps that a branch's messages are compared with
FOREIGN_VERSION = "imported_version"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where trajectories go, and what its model knows: its versions by the names used, and how many ids it has."""

    source: Import
    policy: Policy | None
    n_ids: int | None

    def check_tokens(self, step: IncomingStep) -> None:
        """Raise BadLine for ids that the project's model does not have."""
        if self.n_ids is None:
            return
        for name, ids in (("prompt", step.prompt_ids), ("completion", step.completion_ids)):
            if ids and (largest := max(unpack_ids(ids))) >= self.n_ids:
                raise BadLine(step.line, f"{name} ids: the model's end at {self.n_ids - 1}; {largest} is none of them")

    def find_versions(self, steps: Sequence[IncomingStep]) -> Mapping[str, Version]:
        """Return the versions of this project that the steps name by their ids; another project's are none."""
        names = {step.version for step in steps if step.version.startswith("ver_")}
        return find_named_versions(self.policy, names) if self.policy and names else {}


def find_target(source: Import) -> Target:
    """Return what an import writes into."""
    policy = Policy.objects.filter(project_id=source.project_id).first()
    return Target(source=source, policy=policy, n_ids=read_vocabulary_size(policy) if policy else None)


def write_trajectories(target: Target, incoming: Sequence[Incoming]) -> list[tuple[Trajectory, list[Step]]]:
    """Write the trajectories, complete, each with its steps. The caller holds a transaction."""
    versions = target.find_versions([step for one in incoming for step in one.steps])
    tools: dict[str, str] = {}
    made = []
    for one in incoming:
        trajectory = _make_trajectory(target.source, one)
        writer = _Writer(trajectory, versions, tools)
        made.append((trajectory, [writer.make_step(step) for step in one.steps]))
    steps = [step for _, own in made for step in own]
    copy_rows([trajectory for trajectory, _ in made])
    copy_rows(steps)
    store_tools(tools, project_id=target.source.project_id)
    keep_words(steps)
    check_keys_by_one_plan()
    return made


def _make_trajectory(source: Import, incoming: Incoming) -> Trajectory:
    now = timezone.now()
    started_at = incoming.started_at or _first_time(incoming) or now
    times = [moment for step in incoming.steps if (moment := step.ended_at or step.started_at)]
    return Trajectory(
        project_id=source.project_id,
        agent_id=source.agent_id,
        channel=source.channel or incoming.channel or Channel.TRAIN,
        group=incoming.group,
        title=incoming.title or _make_title(incoming),
        metadata=incoming.metadata,
        is_excluded=incoming.is_excluded,
        has_error=incoming.has_error,
        state=TrajectoryState.COMPLETE,
        started_at=started_at,
        last_step_at=max([started_at, *times]),
        completed_at=now,
        n_steps=len(incoming.steps),
        n_prompt_tokens=sum(len(step.prompt_ids) // ID_BYTES for step in incoming.steps),
        n_completion_tokens=sum(len(step.completion_ids) // ID_BYTES for step in incoming.steps),
    )


def _first_time(incoming: Incoming) -> datetime | None:
    return min((step.started_at for step in incoming.steps if step.started_at), default=None)


def _make_title(incoming: Incoming) -> str:
    first = incoming.steps[0]
    return chat.make_title(first.messages) if first.messages else ""


@dataclass(frozen=True, slots=True)
class _Made:
    """A step with its messages and answer, as JSON."""

    step: Step
    incoming: IncomingStep
    said: list[str]


class _Writer:
    """Makes the steps of one trajectory, each where it goes on from another."""

    def __init__(self, trajectory: Trajectory, versions: Mapping[str, Version], tools: dict[str, str]) -> None:
        """`tools` takes the lists of tools that the steps were offered, as JSON, by their digests."""
        self._trajectory = trajectory
        self._versions = versions
        self._tools = tools
        self._index = TokenIndex()
        self._made: list[_Made] = []
        self._spelled: dict[int, str] = {}

    def make_step(self, incoming: IncomingStep) -> Step:
        version = self._versions.get(incoming.version)
        foreign = {FOREIGN_VERSION: incoming.version} if incoming.version and version is None else {}
        step = Step(
            trajectory=self._trajectory,
            exchange_id=new_id("subm"),
            index=incoming.index,
            version=version,
            completion_token_ids=incoming.completion_ids,
            logprobs=incoming.logprobs or b"",
            answer=self._spell(incoming.answer).encode(),
            side_call=incoming.side_call,
            n_prompt_tokens=len(incoming.prompt_ids) // ID_BYTES,
            n_completion_tokens=len(incoming.completion_ids) // ID_BYTES,
            finish_reason=incoming.finish_reason,
            status=incoming.status,
            is_exact=incoming.is_exact,
            token_check=incoming.token_check,
            constraints=incoming.constraints,
            is_excluded=incoming.is_excluded,
            temperature=incoming.sampling.temperature,
            top_p=incoming.sampling.top_p,
            top_k=incoming.sampling.top_k,
            client_step_id=incoming.client_step_id,
            metadata={**incoming.metadata, **foreign},
            started_at=incoming.started_at or incoming.ended_at or self._trajectory.last_step_at,
            ended_at=incoming.ended_at or incoming.started_at or self._trajectory.last_step_at,
        )
        self._share_tokens(step, incoming)
        self._share_messages(step, incoming)
        return step

    def _share_tokens(self, step: Step, incoming: IncomingStep) -> None:
        parent = self._index.find_parent(incoming.prompt_ids) if incoming.prompt_ids else None
        step.parent_id = parent.step_id if parent else None
        shared, tail = split_tokens(parent.context if parent else b"", incoming.prompt_ids)
        step.shared_tokens, step.tail_token_ids = shared, tail
        if incoming.prompt_ids:
            self._index.add(step.pk, prompt=incoming.prompt_ids, completion=incoming.completion_ids, parent=parent)

    def _share_messages(self, step: Step, incoming: IncomingStep) -> None:
        if not incoming.messages:
            step.tail_messages = b"[]"
            return
        follows = incoming.follows
        before = self._made[follows] if follows is not None and follows < len(self._made) else None
        n_common = count_common(incoming, before.incoming) if before else 0
        messages = before.said[:n_common] if before else []
        messages += map(self._spell, incoming.messages[n_common:])
        if before is None:
            before, n_common = self._find_said(messages)
        step.parent_id = before.step.pk if before else None
        said = before.said if before else []
        shared, step.tail_messages = split_spelled(said[n_common:], messages[n_common:])
        step.shared_messages = n_common + shared
        self._made.append(_Made(step, incoming, [*messages, self._spell(incoming.answer)]))
        self._keep_tools(step, incoming)

    def _spell(self, value: Any) -> str:
        """Return it as JSON, from memory when it was just spelled: a conversation's steps hold the same messages."""
        spelled = self._spelled.get(id(value))
        if spelled is None:
            spelled = self._spelled[id(value)] = chat.dump_json(value)
        return spelled

    def _find_said(self, messages: list[str]) -> tuple[_Made | None, int]:
        """Return which of the steps before these messages (JSON) go on from, and how many of them it has."""
        near = self._made[-_LOOK_BACK:]
        shares = [(count_shared(made.said, messages), place) for place, made in enumerate(near)]
        shared, place = max(shares, default=(0, 0))
        return (near[place], shared) if shared else (None, 0)

    def _keep_tools(self, step: Step, incoming: IncomingStep) -> None:
        if incoming.tools:
            tools = self._spell(incoming.tools)
            step.tools_digest = chat.hash_text(tools)
            self._tools[step.tools_digest] = tools
        step.chain = chat.hash_text(chat.system_text(incoming.messages), step.tools_digest)
