"""Steps that an agent made by itself and submits whole: tokens in, tokens out, with what it knows of them.

They join the trajectory's token trie and train like captured ones. All of one call are written or none; saying the same
again changes nothing. Knows no HTTP, no tokenizer and no rewards.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max
from django.utils import timezone

from apps.core.contracts.arrays import ID_BYTES, unpack_ids
from apps.core.errors import Conflict, InvalidInput
from apps.core.ids import is_id, new_id
from apps.core.live import publish_news
from apps.registry.models import Policy, Version
from apps.registry.queries import find_named_versions
from apps.registry.vocabulary import read_vocabulary_size
from apps.trajectories.calls import Sampling
from apps.trajectories.copying import check_keys_by_one_plan
from apps.trajectories.folded_choices import is_folded_twice, note_choices
from apps.trajectories.generations import Generation, Generations
from apps.trajectories.models import ExchangeStatus, Step, Trajectory, TrajectoryState
from apps.trajectories.search.words import keep_words
from apps.trajectories.token_index import Node, load_token_index
from apps.trajectories.trie import split_tokens

MAX_STEPS = 2000  # in one call


@dataclass(frozen=True, kw_only=True)
class StepDraft:
    """A step as its maker tells it. Ids are int32 and log-probs float32 (nats), packed; None: it knows none.

    `version` names the weights that spoke ("v3", "slug@v3", an id). `client_step_id` names the step for its maker: the
    same name in the same trajectory is the same step.
    """

    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes | None = None
    version: str = ""
    client_step_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    text: str = ""
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What became of a draft. `is_new` is False when the trajectory had the step already."""

    step: Step
    is_new: bool


@transaction.atomic
def submit_steps(*, trajectory: Trajectory, drafts: Sequence[StepDraft]) -> list[Submitted]:
    """Add the drafts to the trajectory, in order, and return what became of each.

    Tokens that this platform generated are recognised: version, sampling and log-probs are then taken from the ledger.
    Raises InvalidInput that names the step and field, and Conflict when the trajectory is complete or a
    `client_step_id` was used for other tokens.
    """
    versions = _check_drafts(trajectory, drafts)
    locked = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    writer = _Writer(locked, drafts, versions)
    submitted = [writer.take(place, draft) for place, draft in enumerate(drafts)]
    if writer.new and locked.state != TrajectoryState.OPEN:
        raise Conflict(f"the trajectory {trajectory.pk} is complete: open a new one")
    writer.write()
    trajectory.refresh_from_db()
    publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    return submitted


def _check_drafts(trajectory: Trajectory, drafts: Sequence[StepDraft]) -> dict[str, Version]:
    """Refuse what cannot be a step of this project's model; return the versions that the drafts name."""
    if not 1 <= len(drafts) <= MAX_STEPS:
        raise InvalidInput(f"send 1 to {MAX_STEPS} steps at once; these are {len(drafts)}", field="steps")
    policy = Policy.objects.filter(project_id=trajectory.project_id).first()
    n_ids = read_vocabulary_size(policy) if policy else None
    versions = find_named_versions(policy, {draft.version for draft in drafts if draft.version}) if policy else {}
    for place, draft in enumerate(drafts):
        _check_tokens(place, draft, n_ids=n_ids)
        if draft.version and draft.version not in versions:
            raise InvalidInput(
                f"steps[{place}].version: this project has no version {draft.version!r}; see GET /api/v1/versions",
                field=f"steps[{place}].version",
            )
    return versions


def _check_tokens(place: int, draft: StepDraft, *, n_ids: int | None) -> None:
    for name, ids in (("prompt_ids", draft.prompt_ids), ("response_ids", draft.completion_ids)):
        where = f"steps[{place}].{name}"
        if not ids:
            raise InvalidInput(f"{where}: it holds no token", field=where)
        if n_ids is not None and (largest := max(unpack_ids(ids))) >= n_ids:
            raise InvalidInput(f"{where}: the model's ids end at {n_ids - 1}; {largest} is none of them", field=where)
    if draft.logprobs is not None and len(draft.logprobs) != len(draft.completion_ids):
        n_logprobs, n_tokens = len(draft.logprobs) // ID_BYTES, len(draft.completion_ids) // ID_BYTES
        where = f"steps[{place}].log_probs"
        raise InvalidInput(f"{where}: {n_logprobs} log-probs for {n_tokens} response ids", field=where)


class _Writer:
    """Turns drafts into steps of one locked trajectory."""

    def __init__(self, trajectory: Trajectory, drafts: Sequence[StepDraft], versions: Mapping[str, Version]) -> None:
        self.trajectory = trajectory
        self.new: list[Step] = []
        self._versions = versions
        self._now = timezone.now()
        self._index = load_token_index(trajectory)
        self._known = _find_known(trajectory, drafts)
        unknown = (draft for draft in drafts if draft.client_step_id not in self._known)
        self._generations = Generations(trajectory, ((draft.prompt_ids, draft.completion_ids) for draft in unknown))
        last = Step.objects.filter(trajectory=trajectory).aggregate(last=Max("index"))["last"]
        self._next_index = 0 if last is None else last + 1

    def take(self, place: int, draft: StepDraft) -> Submitted:
        """Return the step that the draft is, or becomes."""
        known = self._known.get(draft.client_step_id)
        if known is not None:
            _check_same(place, draft, self._index.find_node(known.id))
            return Submitted(step=known, is_new=False)
        generation = self._generations.take((draft.prompt_ids, draft.completion_ids))
        captured = generation.step if generation else None
        step = self._name_captured(captured, draft) if captured else self._make_step(draft, generation)
        if draft.client_step_id:
            self._known[draft.client_step_id] = step
        return Submitted(step=step, is_new=captured is None)

    def write(self) -> None:
        """Store the new steps and bring the trajectory's sums up to date.

        Raises Conflict when a call that spoke one of them became a step elsewhere a moment ago.
        """
        Step.objects.bulk_create(self.new, batch_size=500)
        self._note_calls()
        if self.new:
            keep_words(self.new)
            check_keys_by_one_plan()
            Trajectory.objects.filter(pk=self.trajectory.pk).update(
                last_step_at=max(self.trajectory.last_step_at, self._now),
                n_steps=F("n_steps") + len(self.new),
                n_prompt_tokens=F("n_prompt_tokens") + sum(step.n_prompt_tokens for step in self.new),
                n_completion_tokens=F("n_completion_tokens") + sum(step.n_completion_tokens for step in self.new),
            )

    def _note_calls(self) -> None:
        choices: dict[str, list[int]] = defaultdict(list)
        for step in self.new:
            if is_id(step.exchange_id, "exch"):
                choices[step.exchange_id].append(step.choice)
        try:
            note_choices(choices)
        except IntegrityError as error:
            if not is_folded_twice(error):
                raise
            raise Conflict(
                "a call that said the same is becoming a step elsewhere; try again", retry_after_s=1
            ) from error

    def _name_captured(self, step: Step, draft: StepDraft) -> Step:
        """The call named this trajectory, so the recorder has made its step: only what the maker adds is new."""
        step.client_step_id = step.client_step_id or draft.client_step_id
        step.metadata = {**step.metadata, **draft.metadata}
        step.save(update_fields=["client_step_id", "metadata"])
        return step

    def _make_step(self, draft: StepDraft, generation: Generation | None) -> Step:
        parent = self._index.find_parent(draft.prompt_ids)
        shared, tail = split_tokens(parent.context if parent else b"", draft.prompt_ids)
        told = _told_by_ledger(generation) if generation else self._told_by_maker(draft)
        step = Step(
            trajectory=self.trajectory,
            index=self._next_index,
            parent_id=parent.step_id if parent else None,
            shared_tokens=shared,
            tail_token_ids=tail,
            completion_token_ids=draft.completion_ids,
            tail_messages=b"[]",
            n_prompt_tokens=len(draft.prompt_ids) // ID_BYTES,
            n_completion_tokens=len(draft.completion_ids) // ID_BYTES,
            status=ExchangeStatus.COMPLETE,
            client_step_id=draft.client_step_id,
            metadata=dict(draft.metadata),
            **told,
        )
        self._next_index += 1
        self._index.add(step.id, prompt=draft.prompt_ids, completion=draft.completion_ids, parent=parent)
        self.new.append(step)
        return step

    def _told_by_maker(self, draft: StepDraft) -> dict[str, Any]:
        version = self._versions.get(draft.version)
        return {
            "exchange_id": new_id("subm"),
            "version_id": version.pk if version else None,
            "logprobs": draft.logprobs or b"",
            "is_exact": draft.logprobs is not None,
            "finish_reason": draft.finish_reason,
            "answer": _dump_answer(draft.text),
            **_sampling_columns(draft.sampling),
            **_time_columns(self._now, self._now),
        }


def _told_by_ledger(generation: Generation) -> dict[str, Any]:
    """What the serving side knows of a call, in the columns of a step."""
    exchange, answer = generation.call.exchange, generation.answer
    return {
        "exchange_id": exchange.id,
        "choice": answer.choice,
        "response_id": exchange.response_id,
        "version_id": generation.version_id,
        "logprobs": answer.logprobs,
        "is_exact": answer.is_exact,
        "finish_reason": answer.finish_reason,
        "answer": json.dumps(answer.message, separators=(",", ":")).encode(),
        **_sampling_columns(generation.call.sampling),
        **_time_columns(exchange.started_at, exchange.ended_at),
    }


def _sampling_columns(sampling: Sampling) -> dict[str, float | int]:
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}


def _time_columns(started_at: datetime, ended_at: datetime) -> dict[str, datetime]:
    return {"started_at": started_at, "ended_at": ended_at}


def _dump_answer(text: str) -> bytes:
    return json.dumps({"role": "assistant", "content": text or None}, separators=(",", ":")).encode()


def _find_known(trajectory: Trajectory, drafts: Sequence[StepDraft]) -> dict[str, Step]:
    """Return by its maker's name each step that the trajectory has already."""
    names = {draft.client_step_id for draft in drafts if draft.client_step_id}
    rows = Step.objects.filter(trajectory=trajectory, client_step_id__in=names) if names else ()
    return {step.client_step_id: step for step in rows}


def _check_same(place: int, draft: StepDraft, node: Node | None) -> None:
    context = draft.prompt_ids + draft.completion_ids
    if node is None or node.context != context or node.prompt_bytes != len(draft.prompt_ids):
        raise Conflict(
            f"steps[{place}]: the client_step_id {draft.client_step_id!r} was used for other tokens",
            field=f"steps[{place}].client_step_id",
        )
