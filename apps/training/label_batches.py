"""Trajectories lent for their labels, and what the trainer is told of them. The rules are in `judging`."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from apps.core.contracts.arrays import unpack_ids
from apps.core.contracts.labelled import Answer, Conversation, Judged
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.feedback.preferences.sides import answer_of
from apps.registry.models import Policy, Version
from apps.training.batching import DiscardReason, label_discard_reason
from apps.training.choices import PAIRED, SFT, UNPAIRED
from apps.training.collecting import Collected, Facts, Lent, name_discards, read_step_rewards, state_facts
from apps.training.estimators import BaselineState
from apps.training.judging import (
    Corrected,
    Tried,
    accept,
    compare_answers,
    compare_corrected,
    compare_tries,
    judge,
    match_tries,
)
from apps.training.label_pool import LabelPool
from apps.training.pool import lock_rows
from apps.training.recipes import RecipeConfig
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import load_context, load_steps, load_tools


def lend_labelled(pool: LabelPool) -> Lent | None:
    """Return what one step takes, its rows locked; None when too little is ready."""
    n_wanted = pool.recipe.trajectories_per_step
    if pool.recipe.algorithm in PAIRED:
        return _lend_pairs(pool)
    rows = list(pool.ready().select_for_update(of=("self",), skip_locked=True)[:n_wanted])
    return _lend(rows) if len(rows) == n_wanted else None


def _lend_pairs(pool: LabelPool) -> Lent | None:
    """Take comparisons until there are trajectories enough; the last one may make it one more."""
    ready, n_wanted = list(pool.ready().only("group", "reward")), pool.recipe.trajectories_per_step
    compared = _list_preferences([row.id for row in ready])
    matched = _match(ready, recipe=pool.recipe)
    taken: dict[str, str] = {}  # by trajectory: the pair that it is in, or ""
    for row in ready:
        if len(taken) >= n_wanted:
            break
        if row.id in matched:
            taken |= dict.fromkeys(matched[row.id], "/".join(matched[row.id]))
        elif row.id in compared:
            taken[row.id] = ""
    rows = lock_rows(pool.ready(), taken) if len(taken) >= n_wanted else []
    return _lend(rows, pairs=taken) if rows else None


def _list_preferences(trajectory_ids: Sequence[str]) -> Mapping[str, list[str]]:
    """Return by trajectory the ids of what stands as better in it, corrections among them; no ties."""
    found: dict[str, list[str]] = defaultdict(list)
    rows = Preference.objects.standing().filter(is_tie=False, trajectory__in=trajectory_ids)
    for trajectory_id, preference_id in rows.order_by("id").values_list("trajectory_id", "id"):
        found[trajectory_id].append(preference_id)
    return found


def _match(ready: Sequence[Trajectory], *, recipe: RecipeConfig) -> Mapping[str, tuple[str, str]]:
    """Return by each trajectory's id the pair (better, worse) that it is one of."""
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for row in ready:
        if row.group and row.reward is not None:
            groups[row.group][row.id] = row.reward
    min_gap = recipe.own("min_gap")
    found = [pair for rewards in groups.values() for pair in match_tries(rewards, min_gap=min_gap)]
    return {row_id: pair for pair in found for row_id in pair}


def _lend(rows: Sequence[Trajectory], *, pairs: Mapping[str, str] = MappingProxyType({})) -> Lent:
    ids = [row.id for row in rows]
    step_rewards = read_step_rewards(ids)
    preferences = _list_preferences(ids)
    return Lent(
        trajectories=rows,
        rewards={row.id: row.reward for row in rows},
        facts={
            row.id: Facts(
                step_rewards=step_rewards[row.id],
                preferences=preferences.get(row.id, []),
                pair=pairs.get(row.id, ""),
            )
            for row in rows
        },
    )


def collect_judged(lent: Lent, *, recipe: RecipeConfig, policy: Policy, baseline: BaselineState) -> Collected:
    """Return what the labels say of the answers, and the steps left out by reason. `baseline` stays as it is."""
    ids = [name for facts in lent.facts.values() for name in facts.preferences]
    reader = LabelReader(policy, recipe=recipe, preferences=_with_sides(ids))
    tried = [reader.read(row, reward=lent.rewards[row.id], facts=lent.facts[row.id]) for row in lent.trajectories]
    judged = _judge(tried, lent, recipe=recipe)
    if recipe.algorithm in PAIRED:
        judged += reader.read_comparisons()
    used = {answer.answer_id for each in judged for answer in each.answers}
    idle = DiscardReason.UNPAIRED if recipe.algorithm in PAIRED else DiscardReason.NOT_ACCEPTED
    reader.discards[idle] = sum(answer.answer_id not in used for one in tried for answer in one.answers)
    return Collected(judged=judged, discards=name_discards(+reader.discards), baseline=baseline)


def read_correction_facts(rows: Sequence[Trajectory]) -> dict[str, Facts]:
    """Return by trajectory id what stands as better in it."""
    preferences = _list_preferences([row.id for row in rows])
    return {row_id: Facts(preferences=found) for row_id, found in preferences.items()}


def collect_corrections(lent: Lent, *, recipe: RecipeConfig, policy: Policy) -> list[Judged]:
    """Return the corrections of what was lent, to be imitated beside what its rewards teach."""
    corrected = [row for row in lent.trajectories if row.id in lent.facts and lent.facts[row.id].preferences]
    ids = [name for row in corrected for name in lent.facts[row.id].preferences]
    reader = LabelReader(policy, recipe=recipe, preferences=_with_sides(ids))
    tried = [reader.read(row, reward=None, facts=lent.facts[row.id]) for row in corrected]
    return [
        Judged(trajectory_id=one.trajectory_id, answers=(each.better,), is_good=True)
        for one in tried
        for each in one.corrected
    ]


def _with_sides(ids: Sequence[str]) -> list[Preference]:
    rows = Preference.objects.filter(pk__in=ids).select_related(
        "step", "chosen_step", "rejected_step", "trajectory", "rejected_trajectory"
    )
    return list(rows.order_by("id"))


def _judge(tried: Sequence[Tried], lent: Lent, *, recipe: RecipeConfig) -> list[Judged]:
    if recipe.algorithm == SFT:
        return [each for one in tried for each in accept(one, above=recipe.own("good_above"))]
    if recipe.algorithm == UNPAIRED:
        return [each for one in tried for each in judge(one, above=recipe.own("good_above"))]
    pairs: dict[str, list[Tried]] = defaultdict(list)
    for one in sorted(tried, key=lambda one: -(one.reward or 0.0)):
        if name := lent.facts[one.trajectory_id].pair:
            pairs[name].append(one)
    compared = [each for name, (better, worse) in pairs.items() for each in compare_tries(better, worse, pair=name)]
    return compared + [each for one in tried for each in compare_corrected(one)]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A step with the context that it answered."""

    step: Step
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    messages: Sequence[Any]
    answer: Mapping[str, Any]


class LabelReader:
    """Trajectories as the trainer is told them, and why some of their steps are not (`discards`).

    Answers travel in the tokens of an engine of this policy or, where there are none, in words for the trainer.
    """

    def __init__(self, policy: Policy, *, recipe: RecipeConfig, preferences: Sequence[Preference]) -> None:
        self.discards: Counter[DiscardReason] = Counter()
        self._policy = policy
        self._recipe = recipe
        self._preferences = preferences
        self._own_versions = frozenset(Version.objects.filter(policy=policy).values_list("pk", flat=True))

    def read(self, trajectory: Trajectory, *, reward: float | None, facts: Facts) -> Tried:
        """Return the trajectory with its corrections."""
        corrections: dict[str, list[Preference]] = defaultdict(list)
        for each in self._preferences:
            if each.kind == PreferenceKind.CORRECTION and each.trajectory_id == trajectory.pk and each.step_id:
                corrections[each.step_id].append(each)
        seen = list(self._usable(trajectory))
        return Tried(
            trajectory_id=trajectory.pk,
            reward=reward,
            answers=tuple(self._tell(one) for one in seen if one.step.pk not in corrections),
            step_rewards=facts.step_rewards,
            corrected=tuple(
                Corrected(original=self._tell(one), better=self._tell_message(one, each, each.chosen_message))
                for one in seen
                for each in corrections.get(one.step.pk, ())
            ),
        )

    def read_comparisons(self) -> list[Judged]:
        """Return what was compared otherwise than by a correction, answers and whole trajectories, as pairs."""
        others = [each for each in self._preferences if each.kind != PreferenceKind.CORRECTION]
        return [judged for each in others for judged in self._read_comparison(each)]

    def _read_comparison(self, row: Preference) -> list[Judged]:
        if row.step is None:
            better, worse = (
                Tried(trajectory_id=side.pk, reward=None, answers=tuple(map(self._tell, self._usable(side))))
                for side in (row.trajectory, row.rejected_trajectory)
                if side is not None
            )
            return compare_tries(better, worse, pair=row.pk)
        prompt = self._look_at(row.step)
        chosen = self._tell_side(prompt, row, row.chosen_step, row.chosen_message)
        rejected = self._tell_side(prompt, row, row.rejected_step, row.rejected_message)
        if chosen is None or rejected is None:
            return []
        return compare_answers(chosen, rejected, trajectory_id=row.trajectory_id, pair=row.pk)

    def _tell_side(self, prompt: _Seen, row: Preference, step: Step | None, message: Any) -> Answer | None:
        if step is None:
            return self._tell_message(prompt, row, message)
        return None if self._find_fault(step) else self._tell(self._look_at(step))

    def _usable(self, trajectory: Trajectory) -> Iterator[_Seen]:
        """Yield the steps that can be learnt from; count the others."""
        for view in load_steps(trajectory):
            if reason := self._find_fault(view.row):
                self.discards[reason] += 1
                continue
            yield _Seen(
                step=view.row,
                prompt_ids=tuple(view.prompt_ids),
                completion_ids=tuple(view.completion_ids),
                messages=view.messages,
                answer=view.answer,
            )

    def _find_fault(self, step: Step) -> DiscardReason | None:
        facts = state_facts(step, reward=None, staleness=None)
        reason = label_discard_reason(facts, drops_cut_off=self._recipe.drop_cut_off)
        if reason is None and not step.is_exact and not _says_something(answer_of(step)):
            return DiscardReason.EMPTY
        return reason

    def _look_at(self, step: Step) -> _Seen:
        context = load_context(step.pk)
        ids = unpack_ids(context.token_ids)
        return _Seen(
            step=step,
            prompt_ids=tuple(ids[: context.n_prompt_tokens]),
            completion_ids=tuple(ids[context.n_prompt_tokens :]),
            messages=context.messages[:-1],
            answer=context.messages[-1],
        )

    def _tell(self, seen: _Seen) -> Answer:
        """Return the answer that was given."""
        if not self._has_own_tokens(seen.step):
            return Answer(answer_id=seen.step.pk, conversation=self._quote(seen, seen.answer))
        return Answer(answer_id=seen.step.pk, prompt_ids=seen.prompt_ids, completion_ids=seen.completion_ids)

    def _tell_message(self, seen: _Seen, row: Preference, message: Any) -> Answer:
        """Return an answer that nobody sampled, in the same context."""
        prompt_ids = seen.prompt_ids if self._has_own_tokens(seen.step) else ()
        return Answer(
            answer_id=f"{seen.step.pk}/{row.pk}", prompt_ids=prompt_ids, conversation=self._quote(seen, message)
        )

    def _has_own_tokens(self, step: Step) -> bool:
        return step.is_exact and step.version_id in self._own_versions

    def _quote(self, seen: _Seen, answer: Mapping[str, Any]) -> Conversation:
        tools = load_tools(project_id=self._policy.project_id, digest=seen.step.tools_digest)
        return Conversation(
            messages=json.dumps(list(seen.messages)), tools=json.dumps(tools), answer=json.dumps(answer)
        )


def _says_something(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("content") or answer.get("tool_calls"))
