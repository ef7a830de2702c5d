"""Runs, whole: from the pool through the lease and the real trainer to a version."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.feedback.preferences.services import add_correction
from apps.registry.models import Policy, Version
from apps.training.models import Metric, RunState
from tests.apps.training.conftest import AddTrajectory, LaunchRun
from tests.worker.tasks.conftest import reread
from worker.tasks.train import train_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real, pytest.mark.timeout(600)]
ONE_STEP: dict[str, Any] = {"n_steps": 1, "trajectories_per_step": 4, "minibatch_samples": 16}


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
