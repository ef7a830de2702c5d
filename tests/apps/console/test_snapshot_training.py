"""From a snapshot to a run: which runs took what it holds, and the form set to what it can teach now."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.feedback.services import Answer, add_labels
from apps.registry.models import Alias, Policy
from apps.training.models import Batch, BatchState, BatchTrajectory, Run, RunState
from apps.trajectories.datasets.models import Snapshot
from apps.trajectories.datasets.services import take_snapshot
from apps.trajectories.models import Step, Trajectory
from tests.factories.datasets import DatasetFactory, MemberFactory


def use_up(run: Run, rows: list[Trajectory], *, use: str = "") -> Batch:
    step = run.batches.count() + 1
    batch = Batch.objects.create(run=run, step=step, state=BatchState.TRAINED, n_samples=len(rows))
    for row in rows:
        BatchTrajectory.objects.create(batch=batch, policy=run.policy, trajectory=row, reward=row.reward, use=use)
    return batch


@pytest.fixture
def held(project: Project, owner: User, ready: list[Trajectory]) -> Snapshot:
    """A snapshot of what a run can learn from."""
    dataset = DatasetFactory.create(project=project, name="Refunds")
    for row in ready:
        MemberFactory.create(dataset=dataset, trajectory=row)
    return take_snapshot(dataset=dataset, caller=Caller(user=owner))


def follow(browser: Client, snapshot: Snapshot) -> tuple[str, str]:
    """Return which algorithm stands in the form, and the form."""
    link = f"/p/shop/snapshots/{snapshot.pk}/train"
    for address in (f"/p/shop/snapshots/{snapshot.pk}", f"/p/shop/datasets/{snapshot.dataset_id}"):
        assert f'href="{link}"' in browser.get(address).content.decode()
    html = browser.get(link, follow=True).content.decode()
    assert f'<option value="{snapshot.pk}" selected>' in html
    chosen = re.search(r'<option value="([a-z_]+)" selected', html.split('name="recipe.algorithm"')[1])
    assert chosen is not None
    return chosen[1], html


def test_fresh_rewards_are_learnt_from(trainer_browser: Client, held: Snapshot) -> None:
    algorithm, html = follow(trainer_browser, held)
    assert (algorithm, '<span class="ready-count">2</span>' in html) == ("policy_gradient", True)


def test_what_a_run_has_used_up_teaches_by_what_was_said(
    trainer_browser: Client, run: Run, ready: list[Trajectory], held: Snapshot
) -> None:
    page = f"/p/shop/snapshots/{held.pk}"
    assert "no run yet" in trainer_browser.get(page).content.decode()
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    batch = use_up(run, ready)
    told = trainer_browser.get(page).content.decode()
    assert f'<a href="/p/shop/runs/{run.pk}">first</a></dd><dt>Used up</dt><dd>2 of 2 were trained on by' in told
    algorithm, html = follow(trainer_browser, held)
    assert (algorithm, '<span class="ready-count">1</span>' in html) == ("sft", True)
    batch.entries.update(is_active=False)  # given back
    assert "no run yet" in trainer_browser.get(page).content.decode()
    assert follow(trainer_browser, held)[0] == "policy_gradient"


def test_what_was_said_is_not_used_up(
    trainer_browser: Client, run: Run, ready: list[Trajectory], held: Snapshot
) -> None:
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    use_up(run, ready, use=f"{run.pk}/0")
    told = trainer_browser.get(f"/p/shop/snapshots/{held.pk}").content.decode()
    assert (f'<a href="/p/shop/runs/{run.pk}">first</a></dd>' in told, "trained on by" in told) == (True, False)
    assert follow(trainer_browser, held)[0] == "policy_gradient"


def test_what_was_not_sampled_here_is_imitated(
    trainer_browser: Client, owner: User, held: Snapshot, ready: list[Trajectory]
) -> None:
    Step.objects.update(version=None)
    assert follow(trainer_browser, held)[0] == "sft"


def test_hints_alone_are_distilled(
    trainer_browser: Client, owner: User, held: Snapshot, ready: list[Trajectory]
) -> None:
    Trajectory.objects.update(reward=None)
    hint = Answer(field="hint", text="look it up", step=ready[0].steps.get())
    add_labels(caller=Caller(user=owner), trajectory=ready[0], answers=[hint])
    assert follow(trainer_browser, held)[0] == "hindsight"


def test_where_nothing_teaches_the_form_says_why(trainer_browser: Client, held: Snapshot) -> None:
    Trajectory.objects.update(reward=None)
    algorithm, html = follow(trainer_browser, held)
    assert (algorithm, "there is nothing to learn from. Reward some" in " ".join(html.split())) == (
        "policy_gradient",
        True,
    )


def test_a_project_without_a_policy_says_so(trainer_browser: Client, held: Snapshot, policy: Policy) -> None:
    Alias.objects.all().delete()
    assert "has no policy yet" in follow(trainer_browser, held)[1]


def test_a_run_under_way_changes_no_suggestion(trainer_browser: Client, run: Run, held: Snapshot) -> None:
    algorithm, html = follow(trainer_browser, held)
    assert (algorithm, "Go to that run" in html) == ("policy_gradient", True)


def test_what_one_reviews_blind_suggests_nothing(
    browser_of: Callable[[User], Client],
    project: Project,
    owner: User,
    trainer: User,
    held: Snapshot,
    ready: list[Trajectory],
) -> None:
    queue = create_queue(caller=Caller(user=owner), project=project, settings={"name": "blind"})
    add_trajectories(caller=Caller(user=owner), queue=queue, ids=[ready[0].pk])  # the only accepted one
    take_review(caller=Caller(user=trainer), queue=queue)
    Step.objects.update(version=None)
    assert follow(browser_of(owner), held)[0] == "sft"
    assert follow(browser_of(trainer), held)[0] == "policy_gradient"
