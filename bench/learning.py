"""What each recipe learns on a small real task, beside the others and over several seeds.

    make bench-learning                     (ARGS="--seeds 1 --steps 10" for a quick look)

A tiny model that sorts digits badly is trained by each recipe through the trainer's own steps and the web side's own
advantages and pairs, on answers that it samples itself. Then the same with answers that are K versions old, under each
correction; and estimators with one try at each prompt beside four. Prints tables of mean rewards and, last, one line
`BENCH_LEARNING {json}`. Runs in the ML environment on the CPU, in one process.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.labelled import Answer, Conversation, Judged
from apps.core.contracts.training import LoraSettings, OptimizerSettings, Probe, TrainBatch, TrainJob, TrainSample
from apps.training.estimators import BaselineState, Scored, compute_advantages
from apps.training.judging import Tried, accept, compare_tries, judge, match_tries
from apps.training.objectives import build_critic, build_loss
from apps.training.recipes import RecipeConfig, read_recipe
from bench.learning_task import Try, draw_puzzles, play, teach_badly
from worker.trainer.algorithms import ALGORITHMS

N_TRIES = 48
N_EVALUATED = 256
GROUP = 4
BOLDNESS = 4  # a model of 100,000 weights bears larger steps than those that recipes are made for
LAGS = (0, 1, 2, 4, 8, 16)
TOLD = Conversation(messages="[]", tools="[]", answer="{}")  # rendered already: hints here are tokens

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ema": {},
    "batch": {"estimator": "batch"},
    "reinforce_pp": {"estimator": "reinforce_pp"},
    "rloo": {"estimator": "rloo"},
    "grpo": {"estimator": "grpo"},
    "dr_grpo": {"estimator": "dr_grpo", "aggregation": "constant", "constant_tokens": 5},
    "maxrl": {"estimator": "maxrl"},
    "gae": {"estimator": "gae"},
    "dual_clip": {"loss": "dual_clip"},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo"},
    "sapo": {"loss": "sapo"},
    "dppo_tv": {"loss": "dppo_tv"},
    "sft": {"algorithm": "sft", "good_above": 0.7},
    "dpo": {"algorithm": "preference", "learning_rate": 5e-4},
    "robust_dpo": {"algorithm": "preference", "loss": "robust_dpo", "learning_rate": 5e-4},
    "ipo": {"algorithm": "preference", "loss": "ipo", "learning_rate": 5e-4},
    "kto": {"algorithm": "unpaired", "good_above": 0.7, "learning_rate": 5e-4},
    "apo_zero": {"algorithm": "unpaired", "loss": "apo_zero", "good_above": 0.7, "learning_rate": 5e-4},
    "bco": {"algorithm": "unpaired", "loss": "bco", "good_above": 0.7, "learning_rate": 5e-4},
    "hindsight": {"algorithm": "hindsight", "reward_weight": 0.0},
}
STALE: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "tis": {"correction": "tis"},
    "icepop": {"correction": "icepop"},
    "negative_mask": {"correction": "negative_mask"},
    "dppo_tv": {"loss": "dppo_tv"},
}
ALONE: Mapping[str, Mapping[str, Any]] = {"ema": {}, "rloo": {"estimator": "rloo"}, "grpo": {"estimator": "grpo"}}


class OneProcess:
    """The ranks of a run that has one; and its engine: AdamW without DeepSpeed around it."""

    index, count, is_main = 0, 1, True
    device = torch.device("cpu")

    def __init__(self, policy: Any, *, learning_rate: float) -> None:
        self.module = policy
        self.optimizer: Any = torch.optim.AdamW(
            [parameter for parameter in policy.parameters() if parameter.requires_grad],
            lr=learning_rate,
            weight_decay=0.0,
        )

    def __call__(self, **inputs: Any) -> Any:
        return self.module(**inputs)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Nobody else has anything to add."""
        return tensor

    def raise_if_stopped(self) -> None:
        """Nobody asks it to."""

    def set_gradient_accumulation_boundary(self, _is_boundary: object) -> None:
        """Gradients add up by themselves."""

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients."""
        loss.backward()

    def step(self) -> None:
        """Move the weights."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def build_job(recipe: RecipeConfig, *, model_dir: Path, seed: int) -> TrainJob:
    """Return the trainer's job, in exact arithmetic."""
    return TrainJob(
        run_id="bench",
        base_model_dir=str(model_dir),
        initial_adapter_dir=None,
        n_steps=1,
        lora=LoraSettings(rank=8, alpha=16),
        loss=build_loss(recipe),
        optimizer=OptimizerSettings(
            learning_rate=BOLDNESS * recipe.own("learning_rate"), max_grad_norm=1.0, minibatch_samples=16
        ),
        zero_stage=0,
        max_tokens_per_microbatch=2048,
        seed=seed,
        device="cpu",
        algorithm=recipe.algorithm,
        critic=build_critic(recipe),
        precision="fp32",
    )


def learn(
    recipe: RecipeConfig, *, model_dir: Path, seed: int, n_steps: int, lag: int = 0, group: int = 1
) -> tuple[float, float]:
    """Train for `n_steps`, each on tries of the weights `lag` steps before; return the mean reward before and after."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    job = build_job(recipe, model_dir=model_dir, seed=seed)
    algorithm = ALGORITHMS[job.algorithm]
    policy = algorithm.load(job)
    engine = OneProcess(policy, learning_rate=job.optimizer.learning_rate)
    before = evaluate(policy, seed=seed)
    weights: deque[Any] = deque(maxlen=lag + 1)
    state = BaselineState()
    for step in range(1, n_steps + 1):
        weights.append(adapter_of(policy))
        with spoken_by(policy, weights[0]):
            tries = play(policy.model, draw_puzzles(N_TRIES // group, chance=chance) * group)
        batch, state = build_batch(step, tries, recipe=recipe, state=state)
        if batch.samples or batch.judged:
            algorithm.train(engine, batch, job=job, ranks=engine)
    return before, evaluate(policy, seed=seed)


def adapter_of(policy: Any) -> dict[str, Tensor]:
    """Return what is trained, as it is now."""
    return {
        name: parameter.detach().clone() for name, parameter in policy.named_parameters() if parameter.requires_grad
    }


@contextmanager
def spoken_by(policy: Any, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it the policy has other weights."""
    own = adapter_of(policy)
    policy.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        policy.load_state_dict(own, strict=False)


def evaluate(policy: Any, *, seed: int) -> float:
    """Return the mean reward on puzzles that are the same for all recipes of a seed."""
    torch.manual_seed(seed)
    tries = play(policy.model, draw_puzzles(N_EVALUATED, chance=random.Random(f"evaluation {seed}")))
    return statistics.fmean(each.reward for each in tries)


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
    if recipe.algorithm != "preference":
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


def measure(title: str, settings: Mapping[str, Any], *, seeds: int, **options: Any) -> dict[str, Any]:
    """Learn over the seeds; print a line and return it as data."""
    recipe, began = read_recipe(dict(settings)), time.monotonic()
    found = [learn(recipe, seed=seed, **options) for seed in range(seeds)]
    before, after = (statistics.fmean(each[side] for each in found) for side in (0, 1))
    worst, best = min(each[1] for each in found), max(each[1] for each in found)
    seconds = (time.monotonic() - began) / seeds
    print(f"{title:28} {before:6.3f} {after:6.3f}   {worst:.3f} to {best:.3f}   {seconds:5.1f}")
    return {"name": title, "before": before, "after": after, "worst": worst, "best": best, "seconds": seconds}


def print_titles(words: str) -> None:
    """Print what the columns are."""
    print(f"\n{words:28} before  after   over the seeds   s/seed")


def run(options: argparse.Namespace, *, model_dir: Path) -> dict[str, Any]:
    """Print the tables and return them."""
    shared = {"model_dir": model_dir, "n_steps": options.steps}
    seeds = {"staleness": options.sweep_seeds}
    tables: dict[str, Callable[..., list[dict[str, Any]]]] = {
        "recipes": measure_recipes,
        "staleness": sweep_staleness,
        "singletons": compare_singletons,
    }
    return {
        name: table(seeds=seeds.get(name, options.seeds), **shared)
        for name, table in tables.items()
        if name in (options.only or tables)
    }


def measure_recipes(**shared: Any) -> list[dict[str, Any]]:
    """Each recipe on its own answers."""
    print_titles("recipe")
    return [
        measure(name, settings, group=GROUP if is_grouped(settings) else 1, **shared)
        for name, settings in RECIPES.items()
    ]


def sweep_staleness(**shared: Any) -> list[dict[str, Any]]:
    """Answers that are K versions old, under each correction."""
    print_titles("answers K versions old")
    return [
        measure(f"K {lag:2}  {name}", settings, lag=lag, **shared) for lag in LAGS for name, settings in STALE.items()
    ]


def compare_singletons(**shared: Any) -> list[dict[str, Any]]:
    """One try at each prompt beside several."""
    print_titles("tries at a prompt")
    return [
        measure(f"{group} {'try' if group == 1 else 'tries'}  {name}", settings, group=group, **shared)
        for group in (1, GROUP)
        for name, settings in ALONE.items()
    ]


def is_grouped(settings: Mapping[str, Any]) -> bool:
    """Say whether the recipe compares tries at one prompt."""
    recipe = read_recipe(dict(settings))
    return recipe.group_size is not None or recipe.algorithm == "preference"


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure what each recipe learns on a small real task.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sweep-seeds", type=int, default=1, help="seeds of each cell of the sweep over staleness")
    parser.add_argument("--only", nargs="*", choices=["recipes", "staleness", "singletons"], help="which tables")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--taught", type=int, default=80, help="batches that the model has seen before")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small to share out
    with tempfile.TemporaryDirectory() as folder:
        teach_badly(Path(folder), n_steps=options.taught)
        result = run(options, model_dir=Path(folder))
    print(f"BENCH_LEARNING {json.dumps(vars(options) | result)}")


if __name__ == "__main__":
    main()
