"""Jobs, samples and batches for the trainer's tests, in either environment. Standard library only."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.core.contracts.codec import encode
from apps.core.contracts.training import (
    JOB_FILE,
    LoraSettings,
    LossSettings,
    OptimizerSettings,
    Probe,
    TrainBatch,
    TrainJob,
    TrainSample,
    batch_file,
)

VOCABULARY = 512
SHARED_PROMPT = tuple(range(40, 70))
PROBE = Probe(token_ids=tuple(range(1, 20)))


def make_job(model_dir: Path, **changes: Any) -> TrainJob:
    """A job of three steps in exact arithmetic, with a learning rate at which every step shows."""
    settings: dict[str, Any] = {
        "run_id": "run",
        "base_model_dir": str(model_dir),
        "initial_adapter_dir": None,
        "n_steps": 3,
        "lora": LoraSettings(rank=8, alpha=16),
        "loss": LossSettings(),
        "optimizer": OptimizerSettings(learning_rate=1e-2, max_grad_norm=1.0, minibatch_samples=4),
        "zero_stage": 0,
        "max_tokens_per_microbatch": 128,
        "seed": 1,
        "device": "cpu",
        "precision": "fp32",
    }
    return TrainJob(**{**settings, **changes})


def make_sample(**changes: Any) -> TrainSample:
    """One small sample; `changes` spoil it."""
    settings: dict[str, Any] = {
        "step_id": "step_1",
        "trajectory_id": "traj_1",
        "prompt_ids": (1, 2, 3),
        "completion_ids": (4, 5),
        "logprobs": (-1.0, -2.0),
        "advantage": 0.5,
        "temperature": 1.0,
    }
    return TrainSample(**{**settings, **changes})


def make_samples(n_samples: int, *, seed: int, shared: Sequence[int] = SHARED_PROMPT) -> list[TrainSample]:
    """Random samples of random lengths that begin alike."""
    chance = random.Random(seed)
    return [_random_sample(chance, number=number, shared=tuple(shared)) for number in range(n_samples)]


def _random_sample(chance: random.Random, *, number: int, shared: tuple[int, ...]) -> TrainSample:
    prompt = tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(2, 20)))
    completion = tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 9)))
    return make_sample(
        step_id=f"step_{number}",
        trajectory_id=f"traj_{number}",
        prompt_ids=shared + prompt,
        completion_ids=completion,
        logprobs=tuple(-6.2 + chance.uniform(-0.3, 0.3) for _ in completion),
        advantage=chance.choice([-1.0, 0.5, 1.0]),
        temperature=0.8,
    )


def even_weights(samples: Sequence[TrainSample]) -> dict[str, float]:
    """The weight of every token in a mean over all of them, by step id."""
    n_tokens = sum(len(sample.completion_ids) for sample in samples)
    return {sample.step_id: 1 / n_tokens for sample in samples}


def make_batch(step: int, **changes: Any) -> TrainBatch:
    """The batch of `step`: ten samples, the same ones each time."""
    settings: dict[str, Any] = {"step": step, "samples": tuple(make_samples(10, seed=step)), "probe": PROBE}
    return TrainBatch(**{**settings, **changes})


def write_job(run_dir: Path, job: TrainJob) -> None:
    """Make the run's folder as the train task does."""
    (run_dir / "inbox").mkdir(parents=True)
    (run_dir / JOB_FILE).write_text(encode(job))


def write_batch(run_dir: Path, batch: TrainBatch) -> None:
    """Put a batch into the inbox by an atomic rename."""
    partial = run_dir / "inbox" / ".partial"
    partial.write_text(encode(batch))
    partial.replace(run_dir / batch_file(batch.step))
