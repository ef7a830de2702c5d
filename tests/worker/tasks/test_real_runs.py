"""Runs, whole, one of each family: from the pool through the lease and the real trainer to a version."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.core.contracts.training import EVENTS_FILE
from apps.feedback.preferences.services import add_correction
from apps.registry.models import Policy, Version
from apps.training.models import Attempt, Metric, Run, RunState
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim
from tests.factories.feedback import LabelFactory
from tests.worker.tasks.conftest import later, reread
from worker.tasks.run_folder import run_folder
from worker.tasks.supervision import Limits
from worker.tasks.train import run_attempt, train_run
from worker.tasks.trainer_process import find_members

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real, pytest.mark.timeout(600)]
ONE_STEP: dict[str, Any] = {"n_steps": 1, "trajectories_per_step": 4, "minibatch_samples": 16}
SPOKEN: dict[str, Any] = {"completion_ids": [40, 41, 42], "token_logprobs": [-6.2, -6.2, -6.2]}  # as by chance
TURNS: list[dict[str, Any]] = [SPOKEN, {**SPOKEN, "prompt_ids": [1, 2, 3, 40, 41, 42, 7, 8]}]


@pytest.fixture
def real_policy(ml_python: str, model_dir: Path, settings: Settings, policy: Policy) -> Policy:
    """The policy of the pool, on a tiny model that is really there."""
    settings.CLAW = settings.CLAW.model_copy(update={"ml_python": ml_python, "engine_dtype": "float32"})
    Policy.objects.filter(pk=policy.pk).update(base_model_dir=str(model_dir))
    return policy


@pytest.fixture
def train(launch: LaunchRun, real_policy: Policy) -> Callable[..., dict[str, float]]:
    """Return a function that runs a recipe to its end and returns what its one step measured."""

    def launch_and_train(**recipe: Any) -> dict[str, float]:
        run = launch(**{**ONE_STEP, **recipe})
        train_run(run.id)
        run = reread(run)
        assert (run.state, run.error) == (RunState.SUCCEEDED, "")
        version = Version.objects.get(lineage__run_id=run.id)
        assert (Path(version.adapter_path) / "adapter_model.safetensors").exists()
        assert len(version.probe["logprobs"]) > 0
        measured = dict(Metric.objects.get(run=run).values)
        assert measured["grad_norm"] > 0
        return measured

    return launch_and_train


def test_labels_in_tokens_and_in_words_make_a_version(
    train: Callable[..., dict[str, float]], add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    """Of tokens, of words that no engine of ours said, and of what a person wrote instead."""
    add_trajectory(reward=1.0)
    spoken = {"is_exact": False, "completion_ids": [], "text": "It is noon in Oslo."}
    add_trajectory(reward=0.9, steps=[spoken])
    corrected = add_trajectory(reward=None)
    add_correction(caller=owner_caller, step=corrected.steps.get(), message="No, in Lima.")
    add_trajectory(reward=0.8)

    imitated = train(algorithm="sft")
    assert imitated["samples"] == 4
    assert imitated["loss"] > 0


def test_a_critic_learns_beside_the_policy(
    train: Callable[..., dict[str, float]], add_trajectory: AddTrajectory
) -> None:
    for reward in (1.0, 1.0, 0.5, 0.0):
        add_trajectory(reward=reward, steps=TURNS)
    measured = train(estimator="gae")
    assert measured["samples"] == 8
    # It expects nothing at first: a last turn is worth its trajectory's reward, the one before gae_lambda of it.
    squares = [(reward * share) ** 2 for reward in (1.0, 1.0, 0.5, 0.0) for share in (0.95, 1.0)]
    assert measured["value_loss"] == pytest.approx(sum(squares) / 8 / 2)


def test_the_policy_learns_from_itself_with_a_hint_before_its_eyes(
    train: Callable[..., dict[str, float]], add_trajectory: AddTrajectory
) -> None:
    said = [("Name the city.", "hint", None), ("Say when.", "hint", None), ("Too long.", "comment", -0.5)]
    for words, field, reward in said:
        row = add_trajectory(reward=reward, steps=[SPOKEN])
        LabelFactory.create(trajectory=row, step=row.steps.get(), value=None, text=words, field=field)
    measured = train(algorithm="hindsight", trajectories_per_step=3)
    assert measured["samples"] == 3


def test_pairs_are_told_apart_on_two_processes(
    train: Callable[..., dict[str, float]], add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    """Two tries at one prompt, and two corrections."""
    for reward in (1.0, 0.0):
        add_trajectory(group="g", reward=reward, steps=TURNS)
    for words in ("In Oslo.", "At noon."):
        corrected = add_trajectory(reward=None, steps=[SPOKEN])
        add_correction(caller=owner_caller, step=corrected.steps.get(), message=words)
    measured = train(algorithm="preference", n_processes=2, zero_stage=2)
    assert measured["samples"] == 8
    assert measured["loss"] == pytest.approx(math.log(2))  # no better known than by chance, before the first step


def test_verdicts_are_learnt_one_by_one(train: Callable[..., dict[str, float]], add_trajectory: AddTrajectory) -> None:
    for place, reward in enumerate((1.0, 0.9, 0.2, 0.0)):
        add_trajectory(reward=reward, steps=[{**SPOKEN, "completion_ids": [40 + place, 50, 2]}])
    measured = train(algorithm="unpaired")
    assert measured["samples"] == 4
    assert measured["loss"] == pytest.approx(0.5)


def test_a_reward_model_is_left_as_a_model_that_classifies(
    launch: LaunchRun, real_policy: Policy, add_trajectory: AddTrajectory, tmp_path: Path
) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(group="g", reward=reward)
    run = launch(**ONE_STEP | {"trajectories_per_step": 2}, algorithm="reward_model")
    train_run(run.id)
    run = reread(run)
    assert (run.state, run.error) == (RunState.SUCCEEDED, "")
    assert Metric.objects.get().values["samples"] == 2
    assert Version.objects.count() == 1  # it speaks not: no version of the policy
    (words,) = run.events.filter(kind="step.done").values_list("message", flat=True)
    assert "the reward model so far: adapters/step-000001" in words
    config = json.loads((tmp_path / "runs" / run.id / "reward_model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]


def test_a_real_trainer_that_hangs_in_a_step_is_ended_in_words(
    launch: LaunchRun, real_policy: Policy, add_trajectory: AddTrajectory
) -> None:
    for reward in (1.0, 0.0) * 4:
        add_trajectory(reward=reward, steps=[SPOKEN])
    run = launch(**ONE_STEP | {"n_steps": 2}, restarts=0, silence_limit_s=3)
    attempt = claim(run)
    thread = later(lambda: freeze_ranks(attempt), when=lambda: '"ready"' in read_events(run))
    run_attempt(attempt, limits=Limits())
    thread.join()
    assert "process 0 of the trainer shows no sign of work in step" in reread(run).error
    assert find_members(group_of(attempt), run_dir=run_folder(run.id).path) == []


def read_events(run: Run) -> str:
    path = run_folder(run.id).path / EVENTS_FILE
    return path.read_text() if path.exists() else ""


def group_of(attempt: Attempt) -> int:
    return Attempt.objects.get(pk=attempt.pk).process_group or 0


def freeze_ranks(attempt: Attempt) -> None:
    """Have the kernel stop the ranks where they stand, as a hung device would."""
    for pid in find_members(group_of(attempt), run_dir=run_folder(attempt.run_id).path):
        if "-m\0worker.trainer.rank" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGSTOP)
