"""What a batch holds: the steps that may be trained on, with what is to be learnt from them, and why others are left
out. Reads the pool; lends nothing and changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from apps.core.contracts.labelled import Judged
from apps.core.contracts.training import Probe, TrainSample
from apps.feedback.rewards import score_labels
from apps.training.batching import DiscardReason, StepFacts, discard_reason
from apps.training.choices import CRITIC, HINDSIGHT
from apps.training.estimators import (
    BaselineState,
    Scored,
    compute_advantages,
    compute_turn_advantages,
)
from apps.training.recipes import RecipeConfig
from apps.training.returns import add_final, discount_returns, undo_discount
from apps.trajectories.models import ExchangeStatus, SideCall, Step, Trajectory
from apps.trajectories.trie import StepView, load_steps

PROBE_TOKENS = 256
CUT_OFF = "length"  # how an answer ends that reached its token limit


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was known of a trajectory beside its reward when it was lent.

    `own_reward`: what labels on the trajectory itself add up to, without those on its steps, where credit is by step;
    `step_rewards` by step id; `preferences`: ids of what was said to be better in it; `pair`: the try at the same
    prompt that it is compared with, both ids in one word, or ""; `hints`: words by step id.
    """

    own_reward: float | None = None
    step_rewards: Mapping[str, float] = field(default_factory=dict)
    preferences: Sequence[str] = ()
    pair: str = ""
    hints: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Lent:
    """Trajectories that go into one batch, with the rewards and facts they had when they were lent."""

    trajectories: Sequence[Trajectory]
    rewards: Mapping[str, float | None]
    facts: Mapping[str, Facts] = field(default_factory=dict)

    @property
    def reward_mean(self) -> float | None:
        """The mean of the rewards that there are."""
        known = [reward for reward in self.rewards.values() if reward is not None]
        return fmean(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a batch trains on, why other steps are left out, how old it is, and the baseline after it."""

    discards: dict[str, int]
    baseline: BaselineState
    samples: list[TrainSample] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    staleness: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Say whether training on this would change nothing."""
        return all(sample.is_silent for sample in self.samples) and not self.judged

    @property
    def n_samples(self) -> int:
        """How many answers it trains on."""
        return len(self.samples) + sum(len(each.answers) for each in self.judged)


def collect_samples(lent: Lent, *, recipe: RecipeConfig, baseline: BaselineState, line: Mapping[str, int]) -> Collected:
    """Return the trainable steps with their trajectory's advantage, and those left out by reason."""
    discards: Counter[DiscardReason] = Counter()
    usable = {
        row.id: list(usable_steps(row, lent, recipe=recipe, line=line, discards=discards)) for row in lent.trajectories
    }
    if recipe.estimator == CRITIC:
        return _collect_turns(lent, usable, recipe=recipe, baseline=baseline, line=line, discards=discards)
    assign = _assign_by_step if recipe.credit == "step" else _assign_by_trajectory
    advantages, baseline = assign(lent, usable, recipe=recipe, baseline=baseline)
    samples, distances = [], []
    for view in (view for views in usable.values() for view in views):
        advantage = advantages.get(view.row.id)
        if advantage is None:
            discards[DiscardReason.NO_REWARD] += 1
        elif advantage == 0 and recipe.drop_without_signal:
            discards[DiscardReason.NO_SIGNAL] += 1
        else:
            samples.append(make_sample(view, advantage=advantage))
            distances.append(line[view.row.version_id or ""])
    return Collected(
        samples=samples,
        discards=name_discards(discards),
        staleness=sum(distances) / max(1, len(distances)),
        baseline=baseline,
    )


Usable = Mapping[str, Sequence[StepView]]  # the steps that may carry a gradient, by trajectory id


def _assign_by_trajectory(
    lent: Lent, usable: Usable, *, recipe: RecipeConfig, baseline: BaselineState
) -> tuple[dict[str, float], BaselineState]:
    """Return the advantage of each step, by its id: its trajectory's."""
    scored = [_score(row, usable[row.id], reward=lent.rewards[row.id] or 0.0) for row in lent.trajectories]
    advantages, baseline = compute_advantages(scored, recipe=recipe, baseline=baseline)
    return {view.row.id: advantages[row_id] for row_id, views in usable.items() for view in views}, baseline


def _collect_turns(
    lent: Lent,
    usable: Usable,
    *,
    recipe: RecipeConfig,
    baseline: BaselineState,
    line: Mapping[str, int],
    discards: Counter[DiscardReason],
) -> Collected:
    """Return each turn with what came of it before the next one: the trainer's critic does the rest."""
    samples, distances = [], []
    for row in lent.trajectories:
        returns = dict(read_returns(row, lent.facts[row.id], recipe=recipe))
        views = [view for view in usable[row.id] if returns[view.row.id] is not None]
        discards[DiscardReason.NO_REWARD] += len(usable[row.id]) - len(views)
        kept = [returns[view.row.id] or 0.0 for view in views]
        for view, reward in zip(views, undo_discount(kept, discount=recipe.own("turn_discount")), strict=True):
            samples.append(replace(make_sample(view, advantage=0.0), reward=reward))
            distances.append(line[view.row.version_id or ""])
    return Collected(
        samples=samples,
        discards=name_discards(+discards),
        staleness=sum(distances) / max(1, len(distances)),
        baseline=baseline,
    )


def _assign_by_step(
    lent: Lent, usable: Usable, *, recipe: RecipeConfig, baseline: BaselineState
) -> tuple[dict[str, float], BaselineState]:
    """Return the advantage of each step, by its id: by its own return, against the same turn of other trajectories."""
    turns: dict[int, list[Scored]] = defaultdict(list)
    step_ids: dict[tuple[int, str], str] = {}
    for row in lent.trajectories:
        lengths = {view.row.id: len(view.completion_ids) for view in usable[row.id]}
        for turn, (step_id, value) in enumerate(read_returns(row, lent.facts[row.id], recipe=recipe)):
            step_ids[turn, row.id] = step_id
            if value is not None:
                n_tokens = lengths.get(step_id, 0)
                scored = _score(row, [], reward=value)
                turns[turn].append(replace(scored, n_tokens=n_tokens, longest=n_tokens))
    advantages, baseline = compute_turn_advantages(turns, recipe=recipe, baseline=baseline)
    return {step_ids[place]: advantage for place, advantage in advantages.items()}, baseline


def read_returns(trajectory: Trajectory, facts: Facts, *, recipe: RecipeConfig) -> list[tuple[str, float | None]]:
    """Return each turn's step id and return, in order. What a person excludes passes later rewards on, and no own."""
    steps = Step.objects.filter(trajectory=trajectory, side_call=SideCall.NONE).order_by("index")
    turns = list(steps.values_list("id", "is_excluded"))
    rewards = [None if is_excluded else facts.step_rewards.get(step_id) for step_id, is_excluded in turns]
    returns = discount_returns(add_final(rewards, facts.own_reward), discount=recipe.own("turn_discount"))
    return [(step_id, value) for (step_id, _), value in zip(turns, returns, strict=True)]


def read_step_facts(rows: Sequence[Trajectory]) -> dict[str, Facts]:
    """Return by trajectory id what is known of its steps, and of itself beside them."""
    step_rewards = read_step_rewards([row.id for row in rows])
    return {
        row.id: Facts(own_reward=_read_own_reward(row, step_rewards[row.id]), step_rewards=step_rewards[row.id])
        for row in rows
    }


def _read_own_reward(trajectory: Trajectory, step_rewards: Mapping[str, float]) -> float | None:
    if not step_rewards:
        return trajectory.reward
    verdict = score_labels(trajectory=trajectory).verdict
    return verdict.reward if verdict is not None else None


def read_step_rewards(trajectory_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the rewards of steps that have one of their own, by trajectory and step id."""
    found: dict[str, dict[str, float]] = {row_id: {} for row_id in trajectory_ids}
    for step in Step.objects.filter(trajectory__in=trajectory_ids, reward__isnull=False).only("trajectory", "reward"):
        found[step.trajectory_id][step.id] = step.reward or 0.0
    return found


def name_discards(discards: Counter[DiscardReason]) -> dict[str, int]:
    """Return the counts by the names under which a batch keeps them."""
    return {reason.name.lower(): n for reason, n in discards.items()}


def usable_steps(
    trajectory: Trajectory,
    lent: Lent,
    *,
    recipe: RecipeConfig,
    line: Mapping[str, int],
    discards: Counter[DiscardReason],
    with_messages: bool = False,
) -> Iterator[StepView]:
    """Yield the steps that may carry a gradient; count the others. Hints need no reward."""
    for view in load_steps(trajectory, with_messages=with_messages):
        reward = 0.0 if recipe.algorithm == HINDSIGHT else lent.rewards[trajectory.id]
        facts = state_facts(view.row, reward=reward, staleness=line.get(view.row.version_id or ""))
        reason = discard_reason(facts, max_staleness=len(line), drops_cut_off=recipe.drop_cut_off)
        if reason is None:
            yield view
        else:
            discards[reason] += 1


def _score(trajectory: Trajectory, views: Sequence[StepView], *, reward: float) -> Scored:
    """A reward counts for the baseline even where no step is left to train on."""
    lengths = [len(view.completion_ids) for view in views]
    return Scored(
        trajectory_id=trajectory.id,
        reward=reward,
        group=trajectory.group,
        source=trajectory.agent_id,
        n_tokens=sum(lengths),
        longest=max(lengths, default=0),
    )


def state_facts(step: Step, *, reward: float | None, staleness: int | None) -> StepFacts:
    """Return what decides whether the step can be trained on."""
    return StepFacts(
        is_complete=step.status == ExchangeStatus.COMPLETE,
        reward=reward,
        is_excluded=step.is_excluded,
        is_side_call=step.side_call != SideCall.NONE,
        is_already_trained=False,
        is_text_only=not step.is_exact,
        is_constrained=bool(step.constraints),
        n_completion_tokens=step.n_completion_tokens,
        temperature=step.temperature,
        top_p=step.top_p,
        top_k=step.top_k,
        staleness=staleness,
        is_cut_off=step.finish_reason == CUT_OFF,
    )


def make_sample(view: StepView, *, advantage: float) -> TrainSample:
    return TrainSample(
        step_id=view.row.id,
        trajectory_id=view.row.trajectory_id,
        prompt_ids=tuple(view.prompt_ids),
        completion_ids=tuple(view.completion_ids),
        logprobs=tuple(view.logprobs),
        advantage=advantage,
        temperature=view.row.temperature,
    )


def choose_probe(samples: Sequence[TrainSample]) -> Probe:
    """Return real tokens on which trainer and engine must agree afterwards: the shortest sample, cut.

    Answers on labels may have no tokens yet: then the trainer chooses.
    """
    if not samples:
        return Probe(token_ids=())
    shortest = min(samples, key=lambda sample: len(sample.prompt_ids) + len(sample.completion_ids))
    return Probe(token_ids=(shortest.prompt_ids + shortest.completion_ids)[:PROBE_TOKENS])
