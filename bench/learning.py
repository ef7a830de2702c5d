"""What each recipe learns on a small real task, beside the others and over several seeds.

    make bench-learning                     (ARGS="--seeds 1 --steps 10" for a quick look)

A tiny model that sorts digits badly is trained by each recipe through the trainer's own steps and the web side's own
advantages and pairs, on answers that it samples itself. Then the same with answers that are K versions old, under each
correction; and estimators with one try at each prompt beside four. Prints tables of mean rewards (of a reward model,
which answers nothing, the share of pairs that it tells apart) and, last, one line `BENCH_LEARNING {json}`. Runs in the
ML environment on the CPU.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from apps.core.contracts.training import LoraSettings, OptimizerSettings, TrainJob
from apps.training.choices import PAIRED
from apps.training.estimators import BaselineState
from apps.training.objectives import build_critic, build_loss
from apps.training.recipes import RecipeConfig, read_recipe
from bench.learning_batches import build_batch
from bench.learning_task import draw_puzzles, play, teach_badly
from worker.trainer.algorithms import ALGORITHMS
from worker.trainer.imitation import build_parts
from worker.trainer.label_steps import list_endings, read_verdicts, weigh_verdicts
from worker.trainer.model import load_policy

N_TRIES = 48
N_EVALUATED = 1024  # of which the mean is good to about 0.01
GROUP = 4
BOLDNESS = 4  # a model of 100,000 weights bears larger steps than those that recipes are made for
LAGS = (0, 1, 2, 4, 8, 16)

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ema": {},
    "batch": {"estimator": "batch"},
    "reinforce_pp": {"estimator": "reinforce_pp"},
    "reinforce_pp, k1": {"estimator": "reinforce_pp", "kl": "k1_reward"},
    "reinforce_pp_baseline": {"estimator": "reinforce_pp_baseline"},
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
    "hindsight_top": {"algorithm": "hindsight", "reward_weight": 0.0, "top_tokens": 4},
    "reward_model": {"algorithm": "reward_model", "learning_rate": 5e-4},
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


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A recipe under one condition: its answers are `lag` versions old, and each prompt is tried `group` times."""

    name: str
    settings: Mapping[str, Any]
    lag: int = 0
    group: int = 1


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Mean rewards (or shares of pairs told apart) before and after, and how long it took."""

    before: float
    after: float
    seconds: float


def learn(lesson: Lesson, *, model_dir: Path, seed: int, n_steps: int) -> Learnt:
    """Train for `n_steps` on tries of the policy's own."""
    began = time.monotonic()
    torch.manual_seed(seed)
    chance = random.Random(seed)
    recipe = read_recipe(dict(lesson.settings))
    job = build_job(recipe, model_dir=model_dir, seed=seed)
    algorithm = ALGORITHMS[job.algorithm]
    policy = algorithm.load(job)
    speaker = policy if algorithm.speaks else load_policy(job)
    engine = OneProcess(policy, learning_rate=job.optimizer.learning_rate)
    measure = evaluate if algorithm.speaks else partial(tell_apart, engine, recipe=recipe, job=job)
    before = measure(speaker, seed=seed)
    weights: deque[Any] = deque(maxlen=lesson.lag + 1)
    state = BaselineState()
    for step in range(1, n_steps + 1):
        weights.append(adapter_of(speaker))
        with spoken_by(speaker, weights[0]):
            tries = play(speaker.model, draw_puzzles(N_TRIES // lesson.group, chance=chance) * lesson.group)
        batch, state = build_batch(step, tries, recipe=recipe, state=state)
        if batch.samples or batch.judged:
            algorithm.train(engine, batch, job=job, ranks=engine)
    return Learnt(before=before, after=measure(speaker, seed=seed), seconds=time.monotonic() - began)


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


def tell_apart(engine: OneProcess, speaker: Any, *, recipe: RecipeConfig, job: TrainJob, seed: int) -> float:
    """Return the share of pairs of answers to puzzles, the same for a seed, that a reward model orders rightly."""
    torch.manual_seed(seed)
    puzzles = draw_puzzles(N_EVALUATED // GROUP, chance=random.Random(f"evaluation {seed}"))
    batch, _ = build_batch(1, play(speaker.model, puzzles * GROUP), recipe=recipe, state=BaselineState())
    ranks: Any = engine
    samples = list_endings(batch.judged)
    parts = build_parts(samples, job=job, ranks=ranks)
    verdicts, _ = read_verdicts(engine, samples, parts, judged=batch.judged, job=job, ranks=ranks)
    return weigh_verdicts(verdicts, job.loss)[1]["accuracy"]


Lessons = Mapping[str, Sequence[Lesson]]


def list_lessons() -> Lessons:
    """Return the lessons of each table, in its order."""
    own = [Lesson(name=name, settings=each, group=GROUP if is_grouped(each) else 1) for name, each in RECIPES.items()]
    stale = [Lesson(name=name, settings=each, lag=lag) for lag in LAGS for name, each in STALE.items()]
    alone = [Lesson(name=name, settings=each, group=group) for group in (1, GROUP) for name, each in ALONE.items()]
    return {"recipes": own, "staleness": stale, "singletons": alone}


def summarise(lesson: Lesson, found: Sequence[Learnt]) -> dict[str, Any]:
    """Return what the seeds come to, as data."""
    return {
        "name": lesson.name,
        "lag": lesson.lag,
        "group": lesson.group,
        "before": statistics.fmean(each.before for each in found),
        "after": statistics.fmean(each.after for each in found),
        "worst": min(each.after for each in found),
        "best": max(each.after for each in found),
        "seconds": statistics.fmean(each.seconds for each in found),
    }


def print_rows(title: str, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print a row for each lesson, as it comes in, and return all."""
    print(f"\n{title:24}{'tries':>6}{'before':>9}{'after':>9}{'worst':>9}{'best':>9}{'s/seed':>9}", flush=True)
    done = []
    for row in rows:
        numbers = "".join(f"{row[name]:9.3f}" for name in ("before", "after", "worst", "best"))
        print(f"{row['name']:24}{row['group']:6}{numbers}{row['seconds']:9.1f}", flush=True)
        done.append(row)
    return done


def print_grid(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print what is reached as a grid, ages down and corrections across, and return all."""
    print("\n" + f"{'versions old':24}" + "".join(f"{name:>15}" for name in STALE), flush=True)
    done = []
    for lag in LAGS:
        row = list(islice(rows, len(STALE)))
        print(f"{lag:<24}" + "".join(f"{each['after']:15.3f}" for each in row), flush=True)
        done += row
    return done


PRINTS: Mapping[str, Callable[[Iterator[dict[str, Any]]], list[dict[str, Any]]]] = {
    "recipes": partial(print_rows, "recipe"),
    "staleness": print_grid,
    "singletons": partial(print_rows, "tries at a prompt"),
}


def settle_down() -> None:
    """Have this process take one core, since the model is too small to share out, and say nothing between the rows."""
    torch.set_num_threads(1)
    disable_progress_bar()
    set_verbosity_error()


def run(options: argparse.Namespace, *, model_dir: Path) -> dict[str, Any]:
    """Print the tables and return them. Lessons of all tables are learnt side by side, one to a core."""
    lessons = {name: own for name, own in list_lessons().items() if name in (options.only or PRINTS)}
    n_seeds = {name: options.sweep_seeds if name == "staleness" else options.seeds for name in lessons}
    teach = partial(learn, model_dir=model_dir, n_steps=options.steps)
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), settle_down) as pool:
        begun = {
            name: [[pool.submit(teach, each, seed=seed) for seed in range(n_seeds[name])] for each in own]
            for name, own in lessons.items()
        }
        return {
            name: PRINTS[name](
                summarise(lesson, [one.result() for one in found])
                for lesson, found in zip(own, begun[name], strict=True)
            )
            for name, own in lessons.items()
        }


def is_grouped(settings: Mapping[str, Any]) -> bool:
    """Say whether the recipe compares tries at one prompt."""
    recipe = read_recipe(dict(settings))
    return recipe.group_size is not None or recipe.algorithm in PAIRED


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure what each recipe learns on a small real task.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sweep-seeds", type=int, default=3, help="seeds of each cell of the sweep over staleness")
    parser.add_argument("--only", nargs="*", choices=[*PRINTS], help="which tables")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="lessons at a time")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--taught", type=int, default=80, help="batches that the model has seen before")
    options = parser.parse_args()
    settle_down()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        teach_badly(Path(folder), n_steps=options.taught)
        result = run(options, model_dir=Path(folder))
    result["seconds"] = round(time.monotonic() - began)
    print(f"\nBENCH_LEARNING {json.dumps(vars(options) | result)}")


if __name__ == "__main__":
    main()
