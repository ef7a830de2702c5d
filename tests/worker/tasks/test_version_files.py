"""Old versions' files: gone where nobody needs them, adapters' and whole models' alike, and never what is in use."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.core.contracts.training import adapter_dir, weights_dir
from apps.core.errors import Conflict
from apps.registry import services as registry
from apps.registry.models import (
    Alias,
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    Policy,
    Version,
    VersionKind,
    VersionState,
)
from apps.registry.refresh import move_alias
from apps.training.models import Attempt, Batch, BatchState, Metric, Run, RunState
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import LaunchRun
from tests.factories.registry import EngineFactory, VersionFactory
from worker.tasks.housekeep import remove_version_files
from worker.tasks.run_folder import run_folder

pytestmark = pytest.mark.django_db
FOLDERS = {VersionKind.ADAPTER: adapter_dir, VersionKind.WHOLE: weights_dir}
TrainSteps = Callable[..., list[Version]]


@pytest.fixture
def train(launch: LaunchRun, two_ready: list[Trajectory], policy: Policy) -> TrainSteps:
    """Return a function that launches a run which has made versions, one for each of `losses`."""

    def launch_and_train(
        *losses: float, kind: VersionKind = VersionKind.ADAPTER, state: RunState = RunState.SUCCEEDED, **recipe: Any
    ) -> list[Version]:
        run = launch(**recipe)
        attempt = Attempt.objects.create(run=run, number=1, host="here")
        versions = []
        for step, loss in enumerate(losses, start=1):
            folder = run_folder(run.id).path / FOLDERS[kind](step)
            folder.mkdir(parents=True)
            number = policy.versions.count()
            version = VersionFactory.create(policy=policy, number=number, adapter_path=str(folder), kind=kind)
            Batch.objects.create(run=run, step=step, state=BatchState.TRAINED, n_samples=1, version=version)
            Metric.objects.create(run=run, attempt=attempt, step=step, values={"loss": loss})
            versions.append(version)
        Run.objects.filter(pk=run.pk).update(state=state)
        return versions

    return launch_and_train


def clear_away() -> None:
    """Two passes of the clock, some minutes apart."""
    remove_version_files()
    Version.objects.exclude(given_up_at=None).update(given_up_at=timezone.now() - timedelta(minutes=5))
    remove_version_files()


def kept(versions: list[Version]) -> list[int]:
    """The places, counted from 1, of those whose files are there; the rows say the same."""
    there = [place for place, version in enumerate(versions, start=1) if Path(version.adapter_path).exists()]
    rows = [Version.objects.get(pk=version.pk).given_up_at is None for version in versions]
    assert there == [place for place, is_kept in enumerate(rows, start=1) if is_kept]
    return there


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [(VersionKind.ADAPTER, {"keep_versions": 2}), (VersionKind.WHOLE, {"tuning": "full"})],
    ids=["adapters", "whole"],
)
def test_the_newest_stay_and_the_best(train: TrainSteps, kind: VersionKind, recipe: dict[str, Any]) -> None:
    versions = train(0.5, 0.1, 0.4, 0.3, 0.2, kind=kind, keep_best="loss", **recipe)
    clear_away()
    assert kept(versions) == [2, 4, 5]


def test_adapters_are_kept_unless_a_run_says_otherwise(train: TrainSteps) -> None:
    versions = train(*[0.5] * 4)
    clear_away()
    assert kept(versions) == [1, 2, 3, 4]


def test_a_recipe_of_an_earlier_release_that_is_refused_by_now_keeps_its_files_and_holds_up_no_other(
    train: TrainSteps,
) -> None:
    old = train(*[0.5] * 3, keep_versions=1)
    Run.objects.update(recipe={"loss": "no longer known"})
    new = train(*[0.5] * 3, keep_versions=1)
    clear_away()
    assert (kept(old), kept(new)) == ([1, 2, 3], [3])


def test_what_is_in_use_stays_until_it_is_not(train: TrainSteps, policy: Policy) -> None:
    versions = train(*[0.5] * 6, keep_versions=1)
    named, loaded, held, waiting, *_ = versions
    registry.switch_alias(policy=policy, alias=AliasName.CANDIDATE, version=named, actor="a test")
    engine = EngineFactory.create(weights=held)
    Deployment.objects.create(version=loaded, engine=engine, state=DeploymentState.LOADED)
    Version.objects.filter(pk=waiting.pk).update(state=VersionState.PUBLISHED)
    clear_away()
    assert kept(versions) == [1, 2, 3, 4, 6]
    Alias.objects.filter(name=AliasName.CANDIDATE).delete()
    Deployment.objects.update(state=DeploymentState.UNLOADED)
    Engine.objects.update(weights=None)
    registry.mark_failed(waiting, error="other weights")
    clear_away()
    assert kept(versions) == [6]


@pytest.mark.parametrize(("state", "n_kept"), [(RunState.FAILED, 2), (RunState.SUCCEEDED, 1)])
def test_what_a_run_began_with_stays_while_it_may_go_on(train: TrainSteps, state: RunState, n_kept: int) -> None:
    first, second = train(0.5, 0.5, keep_versions=1)
    Run.objects.create(project=first.policy.project, policy=first.policy, start_version=first, n_steps=1, recipe={},
                       state=state)  # fmt: skip
    clear_away()
    assert len(kept([first, second])) == n_kept


def test_files_go_a_while_after_they_were_given_up_and_not_under_a_change(train: TrainSteps) -> None:
    first, _ = train(0.5, 0.5, keep_versions=1)
    remove_version_files()
    remove_version_files()
    assert Path(first.adapter_path).exists()  # somebody may be loading it
    Version.objects.filter(pk=first.pk).update(given_up_at=timezone.now() - timedelta(minutes=5))
    engine = EngineFactory.create(moving_since=timezone.now())
    remove_version_files()
    assert Path(first.adapter_path).exists()
    Engine.objects.filter(pk=engine.pk).update(moving_since=None)
    remove_version_files()
    assert not Path(first.adapter_path).exists()


def test_a_version_without_files_cannot_go_live(train: TrainSteps, policy: Policy) -> None:
    first, _ = train(0.5, 0.5, keep_versions=1)
    clear_away()
    with pytest.raises(Conflict, match="the files of version 1 are not kept any more"):
        move_alias(policy=policy, alias=AliasName.LIVE, version=first, actor="a test")


def test_files_from_elsewhere_are_left_alone(train: TrainSteps, tmp_path: Path) -> None:
    first, _ = train(0.5, 0.5, keep_versions=1)
    mine = tmp_path / "mine"
    mine.mkdir()
    Version.objects.filter(pk=first.pk).update(adapter_path=str(mine))
    clear_away()
    assert mine.exists()


def test_a_reward_models_adapters_go_like_versions(launch: LaunchRun, two_ready: list[Trajectory]) -> None:
    Trajectory.objects.update(group="g")
    run = launch(algorithm="reward_model", keep_versions=1)
    folders = [run_folder(run.id).path / adapter_dir(step) for step in (1, 2)]
    for step, folder in enumerate(folders, start=1):
        folder.mkdir(parents=True)
        Batch.objects.create(run=run, step=step, state=BatchState.TRAINED, n_samples=1)
    remove_version_files()
    assert [folder.exists() for folder in folders] == [False, True]
