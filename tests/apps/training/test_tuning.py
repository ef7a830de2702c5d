"""What may be trained on top of what is live, and what a run of all weights tells its trainer and publishes."""

import json
from pathlib import Path

import pytest

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.registry import services as registry
from apps.registry.models import Alias, AliasName, Policy, Version, VersionKind
from apps.training.jobs import build_job
from apps.training.leases import acknowledge_step, lease_batch
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import LaunchRun, claim, finish_step
from tests.factories.registry import VersionFactory

pytestmark = pytest.mark.django_db


def make_live(policy: Policy, kind: VersionKind) -> Version:
    version = VersionFactory.create(policy=policy, number=1, kind=kind, adapter_path="/runs/1/step-000001")
    Alias.objects.filter(policy=policy, name=AliasName.LIVE).update(version=version)
    return version


def test_all_weights_start_from_the_base_and_make_whole_versions(
    launch: LaunchRun, two_ready: list[Trajectory], tmp_path: Path
) -> None:
    run = launch(tuning="full")
    job = build_job(run, device="cpu", engine_dtype="float32")
    assert (job.tuning, job.lora, job.initial_weights_dir, job.initial_adapter_dir) == ("full", None, None, None)
    attempt = claim(run)
    batch = lease_batch(attempt, step=1)
    assert batch is not None
    acknowledge_step(attempt, finish_step(batch, tmp_path))
    version = Version.objects.get(number=1)
    assert (version.kind, version.engine_name) == (VersionKind.WHOLE, run.policy.base_model)


def test_they_go_on_from_a_whole_version(launch: LaunchRun, policy: Policy, two_ready: list[Trajectory]) -> None:
    live = make_live(policy, VersionKind.WHOLE)
    Version.objects.filter(pk=live.pk).update(parent=policy.versions.get(number=0))
    job = build_job(launch(tuning="full"), device="cpu", engine_dtype="float32")
    assert (job.initial_weights_dir, job.initial_adapter_dir) == (live.adapter_path, None)


@pytest.mark.parametrize(
    ("kind", "tuning", "words"),
    [
        (VersionKind.WHOLE, "lora", "live is version 1, a whole model, and adapters stand on the base"),
        (VersionKind.ADAPTER, "full", "live is version 1, an adapter, and a whole model would take away the base"),
    ],
)
def test_what_cannot_be_served_after_live_is_refused_with_the_way_out(
    launch: LaunchRun, policy: Policy, two_ready: list[Trajectory], kind: VersionKind, tuning: str, words: str
) -> None:
    make_live(policy, kind)
    with pytest.raises(InvalidInput, match=words) as caught:
        launch(tuning=tuning)
    assert caught.value.field == "recipe.tuning"


def test_a_base_that_another_project_stands_on_stays(
    launch: LaunchRun, two_ready: list[Trajectory], other_project: Project
) -> None:
    registry.ensure_policy(project=other_project, slug="other", base_model="tiny", base_model_dir="models/tiny")
    with pytest.raises(InvalidInput, match="other stands on tiny too"):
        launch(tuning="full")


def test_a_base_with_shared_embeddings_is_refused(
    launch: LaunchRun, policy: Policy, two_ready: list[Trajectory], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    Policy.objects.update(base_model_dir=str(tmp_path))
    with pytest.raises(InvalidInput, match="tie_word_embeddings=false"):
        launch(tuning="full")
