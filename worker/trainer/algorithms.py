"""What a run's algorithm means to the trainer: how a batch is checked and how a step is made of it. One table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from apps.core.contracts.training import TrainBatch, TrainJob
from worker.trainer.batches import check_batch, check_judged
from worker.trainer.critic import load_actor
from worker.trainer.errors import TrainerError
from worker.trainer.imitation import list_answers
from worker.trainer.label_steps import list_endings, train_on_labels
from worker.trainer.model import Policy, load_policy
from worker.trainer.ranks import Ranks
from worker.trainer.reward_model import load_reward_model, save_reward_model
from worker.trainer.steps import train_step


def nothing_left(_model: Policy, _job: TrainJob, *, run_dir: Path, ranks: Ranks) -> None:
    """What was published at each step is all there is."""


class Check(Protocol):
    """Raises BatchError when a batch must not be trained on."""

    def __call__(self, batch: TrainBatch, *, step: int, vocab_size: int, max_length: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """All are called by all ranks; `train` returns the step's metrics and raises StopRequested or TrainerError.

    `speaks`: what is trained is a policy that engines can load and be asked about. `finish`: what is left to do when
    all steps are done.
    """

    check: Check
    train: Callable[..., dict[str, float]]
    load: Callable[[TrainJob], Policy] = load_policy
    speaks: bool = True
    finish: Callable[..., None] = nothing_left


def find_algorithm(job: TrainJob) -> Algorithm:
    """Return what the job asks for. Raises TrainerError for what this trainer does not know."""
    if job.algorithm not in ALGORITHMS:
        raise TrainerError(f"Unknown algorithm {job.algorithm!r}: the web side is newer than this trainer; update it.")
    return ALGORITHMS[job.algorithm]


ON_LABELS = Algorithm(check=check_judged, train=partial(train_on_labels, list_samples=list_answers))
ALGORITHMS: Mapping[str, Algorithm] = {
    "policy_gradient": Algorithm(check=check_batch, train=train_step, load=load_actor),
    "hindsight": Algorithm(check=check_batch, train=train_step),
    "sft": ON_LABELS,
    "preference": ON_LABELS,
    "unpaired": ON_LABELS,
    "reward_model": Algorithm(
        check=check_judged,
        train=partial(train_on_labels, list_samples=list_endings),
        load=load_reward_model,
        speaks=False,
        finish=save_reward_model,
    ),
}
