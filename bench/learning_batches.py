"""From tries at puzzles to what the web side would send of them: its own advantages, verdicts and pairs.

Knows nothing of models or of the trainer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apps.core.contracts.labelled import Answer, Conversation, Judged
from apps.core.contracts.training import Probe, TrainBatch, TrainSample
from apps.training.choices import PAIRED
from apps.training.estimators import BaselineState, Scored, compute_advantages
from apps.training.judging import Tried, accept, compare_tries, judge, match_tries
from apps.training.recipes import RecipeConfig
from bench.learning_task import Try

TOLD = Conversation(messages="[]", tools="[]", answer="{}")  # rendered already: hints here are tokens


def build_batch(
    step: int, tries: Sequence[Try], *, recipe: RecipeConfig, state: BaselineState
) -> tuple[TrainBatch, BaselineState]:
    """Return what the web side would send of these tries."""
    samples: list[TrainSample] = []
    if recipe.algorithm == "policy_gradient":
        advantages, state = _assign(tries, recipe=recipe, state=state)
        every = [to_sample(number, each, advantages[str(number)]) for number, each in enumerate(tries)]
        if recipe.estimator == "gae":
            every = [replace(sample, reward=each.reward) for sample, each in zip(every, tries, strict=True)]
        samples = [sample for sample in every if sample.advantage or sample.reward is not None]
    elif recipe.algorithm == "hindsight":
        samples = [
            replace(to_sample(number, each, 0.0), hint=TOLD, hinted_ids=each.puzzle.hinted_ids)
            for number, each in enumerate(tries)
        ]
    judged = tuple(_judge(tries, recipe=recipe))
    return TrainBatch(step=step, samples=tuple(samples), judged=judged, probe=Probe(token_ids=())), state


def _assign(
    tries: Sequence[Try], *, recipe: RecipeConfig, state: BaselineState
) -> tuple[Mapping[str, float], BaselineState]:
    if recipe.estimator == "gae":
        return {str(n): 0.0 for n in range(len(tries))}, state
    scored = [
        Scored(trajectory_id=str(n), reward=each.reward, group=str(each.puzzle.digits), n_tokens=len(each.answer_ids))
        for n, each in enumerate(tries)
    ]
    return compute_advantages(scored, recipe=recipe, baseline=state)


def to_sample(number: int, one: Try, advantage: float) -> TrainSample:
    """Return the try as the trainer is told it."""
    return TrainSample(
        step_id=str(number),
        trajectory_id=str(number),
        prompt_ids=one.puzzle.prompt_ids,
        completion_ids=one.answer_ids,
        logprobs=one.logprobs,
        advantage=advantage,
        temperature=1.0,
    )


def _judge(tries: Sequence[Try], *, recipe: RecipeConfig) -> list[Judged]:
    tried = [
        Tried(
            trajectory_id=str(n),
            reward=each.reward,
            answers=(Answer(answer_id=str(n), prompt_ids=each.puzzle.prompt_ids, completion_ids=each.answer_ids),),
        )
        for n, each in enumerate(tries)
    ]
    if recipe.algorithm == "sft":
        return [each for one in tried for each in accept(one, above=recipe.own("good_above"))]
    if recipe.algorithm == "unpaired":
        return [each for one in tried for each in judge(one, above=recipe.own("good_above"))]
    if recipe.algorithm not in PAIRED:
        return []
    groups: dict[Any, dict[str, float]] = {}
    for n, each in enumerate(tries):
        groups.setdefault(each.puzzle.digits, {})[str(n)] = each.reward
    pairs = [pair for rewards in groups.values() for pair in match_tries(rewards, min_gap=recipe.own("min_gap"))]
    return [
        each
        for better, worse in pairs
        for each in compare_tries(tried[int(better)], tried[int(worse)], pair=f"{better}/{worse}")
    ]
