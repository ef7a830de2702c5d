"""Runs: the list, one run, its curves and batches."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.console.queries.runs import CHARTS, POINTS_SHOWN, read_curves, read_progress
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.registry.models import Alias, AliasName, Policy, Version, VersionState
from apps.training.models import Attempt, AttemptState, Batch, BatchState, BatchTrajectory, Metric, Run, RunState
from apps.trajectories.models import Trajectory
from tests.factories.registry import VersionFactory


def test_a_run_says_that_its_version_is_not_live_yet(owner_browser: Client, run: Run) -> None:
    address = f"/p/shop/runs/{run.id}"
    version = VersionFactory.create(
        policy=run.policy,
        parent=run.start_version,
        number=1,
        adapter_path="/a",
        sha256="ab" * 32,
        state=VersionState.PUBLISHED,
        lineage={"run_id": run.id, "step": 1},
    )
    html = owner_browser.get(address).content.decode()
    assert "Version 1</a> is being verified on the engines, and is not live yet; it goes live by itself" in html
    Version.objects.filter(pk=version.pk).update(state=VersionState.READY)
    assert "being verified" not in owner_browser.get(address).content.decode()


def test_a_run_can_be_duplicated(trainer_browser: Client, run: Run) -> None:
    html = trainer_browser.get(f"/p/shop/runs/new?from={run.id}").content.decode()
    assert 'name="recipe.n_steps" id="f-recipe.n_steps" value="3"' in html
    assert 'value="first"' in html


def test_the_list_shows_runs(viewer_browser: Client, run: Run) -> None:
    html = viewer_browser.get("/p/shop/runs").content.decode()
    assert "first" in html
    assert "waits for a worker" in html


def test_a_run_is_cancelled_and_resumed(trainer_browser: Client, run: Run) -> None:
    trainer_browser.post(f"/p/shop/runs/{run.id}/cancel")
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert "Resume" in trainer_browser.get(f"/p/shop/runs/{run.id}").content.decode()
    trainer_browser.post(f"/p/shop/runs/{run.id}/resume")
    run.refresh_from_db()
    assert run.state == RunState.QUEUED
    assert trainer_browser.post(f"/p/shop/runs/{run.id}/resume").status_code == 409


@pytest.mark.parametrize(
    ("state", "steps_done", "asked", "told", "resumed"),
    [
        ("queued", 0, "no training step yet, so nothing is lost", "Cancelled. It had done no", "it begins anew"),
        ("queued", 2, "ends at once; its last checkpoint and", "Cancelled. Its last checkpoint stays", "it goes on"),
        ("running", 0, "It ends after a checkpoint;", "Stopping after a checkpoint", ""),
    ],
)
def test_who_cancels_a_run_hears_of_a_checkpoint_where_there_is_one(
    trainer_browser: Client, run: Run, state: str, steps_done: int, asked: str, told: str, resumed: str
) -> None:
    Run.objects.filter(pk=run.pk).update(state=state, steps_done=steps_done)
    address = f"/p/shop/runs/{run.id}"
    assert asked in trainer_browser.get(address).content.decode()
    assert told in trainer_browser.post(f"{address}/cancel", follow=True).content.decode()
    if resumed:
        assert f"Queued again; {resumed}" in trainer_browser.post(f"{address}/resume", follow=True).content.decode()


def test_a_queued_run_says_its_place_once(viewer_browser: Client, run: Run) -> None:
    base = VersionFactory.create()
    Run.objects.create(
        id="run_00" + run.id[6:],
        project=base.policy.project,
        policy=base.policy,
        start_version=base,
        recipe=run.recipe,
        n_steps=1,
    )
    html = viewer_browser.get(f"/p/shop/runs/{run.id}").content.decode()
    assert html.count("before it: 1") == 1
    assert "before this one" not in html


def test_a_failed_run_says_why(viewer_browser: Client, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(state=RunState.FAILED, error="The trainer ran out of memory on device 0.")
    assert "ran out of memory" in viewer_browser.get(f"/p/shop/runs/{run.id}").content.decode()


@pytest.fixture
def attempt(run: Run) -> Attempt:
    Run.objects.filter(pk=run.pk).update(state=RunState.RUNNING, started_at=timezone.now())
    run.refresh_from_db()
    return Attempt.objects.create(run=run, number=1, host="gpu-1")


def add_points(attempt: Attempt, steps: range, *, loss: float) -> None:
    for step in steps:
        at = timezone.now() + timedelta(seconds=20 * step)
        Metric.objects.create(run=attempt.run, attempt=attempt, step=step, values={"loss": loss + step}, at=at)


def test_curves_follow_the_latest_attempt_and_keep_the_lost_points(run: Run, attempt: Attempt) -> None:
    add_points(attempt, range(1, 4), loss=0)
    Attempt.objects.filter(pk=attempt.pk).update(state=AttemptState.LOST)
    second = Attempt.objects.create(run=run, number=2, host="gpu-2")
    add_points(second, range(3, 5), loss=10)
    curve = next(curve for curve in read_curves(run) if curve.name == "loss")
    assert (curve.steps, curve.values) == ([1, 2, 3, 4], [1, 2, 13, 14])
    assert curve.lost == [None, None, 3, None]


def test_one_point_alone_is_a_level_line(run: Run, attempt: Attempt) -> None:
    Metric.objects.create(run=run, attempt=attempt, step=1, values={"loss": 0.5})
    (curve,) = read_curves(run)
    assert curve.polyline == "4,48 296,48"


def test_long_curves_are_thinned_and_keep_their_end(run: Run, attempt: Attempt) -> None:
    points = [Metric(run=run, attempt=attempt, step=step, values={"loss": step}) for step in range(1, 1501)]
    Metric.objects.bulk_create(points)
    curve = read_curves(run)[0]
    assert len(curve.steps) <= POINTS_SHOWN + 1
    assert curve.steps[-1] == 1500


def test_the_estimate_comes_from_the_latest_steps(run: Run, attempt: Attempt) -> None:
    assert read_progress(run).eta_s is None
    add_points(attempt, range(1, 3), loss=0)
    Run.objects.filter(pk=run.pk).update(steps_done=2)
    run.refresh_from_db()
    progress = read_progress(run)
    assert progress.percent == 67
    assert progress.eta_s == pytest.approx(20, abs=1)


def test_the_page_of_a_run_leads_to_its_trajectories(
    viewer_browser: Client, run: Run, attempt: Attempt, ready: list[Trajectory], policy: Policy
) -> None:
    values = {"loss": 0.5, "reward_mean": 0.25}
    Metric.objects.create(run=run, attempt=attempt, step=1, values=values)
    batch = Batch.objects.create(
        run=run, step=1, state=BatchState.TRAINED, reward_mean=0.25, n_samples=2, discards={"stale": 1}
    )
    for row in ready:
        BatchTrajectory.objects.create(batch=batch, policy=policy, trajectory=row, reward=row.reward or 0)
    html = viewer_browser.get(f"/p/shop/runs/{run.id}").content.decode()
    assert 'data-chart="loss"' in html
    assert 'data-chart="reward_mean"' in html
    assert '"name": "loss"' in html
    assert "1: spoken by a version that is too old" in html
    inside = viewer_browser.get(f"/p/shop/runs/{run.id}/batches/1").content.decode()
    assert all(row.id in inside for row in ready)
    back = viewer_browser.get(f"/p/shop/trajectories/{ready[0].id}").content.decode()
    assert f"/p/shop/runs/{run.id}/batches/1" in back


def test_who_reviews_some_of_a_batch_blind_is_told_no_mean_of_it(
    project: Project,
    run: Run,
    attempt: Attempt,
    ready: list[Trajectory],
    mate: User,
    owner: User,
    browser_of: Callable[[User], Client],
    client_of: Callable[[User], APIClient],
) -> None:
    Metric.objects.create(run=run, attempt=attempt, step=1, values={"loss": 0.5, "reward_mean": 0.25})
    batch = Batch.objects.create(run=run, step=1, state=BatchState.TRAINED, reward_mean=0.25, n_samples=2)
    for row in ready:
        BatchTrajectory.objects.create(batch=batch, policy=run.policy, trajectory=row, reward=row.reward or 0)
    queue = create_queue(caller=Caller(user=owner), project=project, settings={"name": "blind"})
    add_trajectories(caller=Caller(user=owner), queue=queue, ids=[ready[0].pk])
    take_review(caller=Caller(user=mate), queue=queue)
    for address, words in (("", '"reward_mean"'), ("", "+0.25"), ("/batches/1", "+0.25")):
        pages = [browser_of(user).get(f"/p/shop/runs/{run.id}{address}").content.decode() for user in (mate, owner)]
        assert [words in page for page in pages] == [False, True], (address, words)
        assert [">hidden</span>" in page for page in pages] == [True, False], address
    for address in ("metrics", "batches"):
        told = [client_of(user).get(f"/api/v1/runs/{run.id}/{address}").content for user in (mate, owner)]
        assert [b"0.25" in one for one in told] == [False, True], address


def test_a_run_leads_to_the_versions_that_it_made(viewer_browser: Client, run: Run, policy: Policy) -> None:
    address = f"/p/shop/runs/{run.id}"
    assert "All versions" not in viewer_browser.get(address).content.decode()
    for step in (1, 2):
        version = VersionFactory.create(
            policy=policy,
            parent=run.start_version,
            number=step,
            adapter_path=f"/a/{step}",
            sha256="ab" * 32,
            lineage={"run_id": run.id, "step": step},
        )
        Batch.objects.create(run=run, step=step, state=BatchState.TRAINED, n_samples=2, version=version)
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED, started_at=run.created_at, ended_at=timezone.now())
    html = viewer_browser.get(address).content.decode()
    assert (
        'versions <a href="/p/shop/models#v1">1</a> to <a href="/p/shop/models#v2">2</a>; none of them is live' in html
    )
    assert '<a href="/p/shop/models">Models</a>' in html
    Alias.objects.filter(policy=policy, name=AliasName.LIVE).update(version=version)
    html = viewer_browser.get(address).content.decode()
    assert "; version 2 is live" in html
    assert html.count('href="/p/shop/models#v2">v2</a>') == 1  # in the row of its batch
    assert (
        'Made <a href="/p/shop/models#v1">version 1</a>' in viewer_browser.get(f"{address}/batches/1").content.decode()
    )


def test_only_a_run_under_way_says_what_is_left(viewer_browser: Client, run: Run) -> None:
    def read() -> str:
        return viewer_browser.get(f"/p/shop/runs/{run.id}").content.decode().split('class="stats"')[1].split("</dl>")[0]

    assert "<dt>left</dt>" in read()
    assert "<dt>so far</dt>" in read()
    Run.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED, started_at=run.created_at, ended_at=timezone.now())
    assert "<dt>left</dt>" not in read()
    assert "<dt>took</dt>" in read()
    assert "<dt>a training step</dt>" not in read()  # known after two


def test_the_page_costs_the_same_for_many_runs(
    viewer_browser: Client, run: Run, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for number in range(20):
        run.pk = None
        run.id = f"run_{number:026d}"
        run.state = RunState.SUCCEEDED
        run.save(force_insert=True)
    with django_assert_max_num_queries(10):  # type: ignore[attr-defined]
        page = viewer_browser.get("/p/shop/runs").content.decode()
    assert page.count("/p/shop/runs/run_") >= 20


def test_each_chart_says_what_it_is_and_whether_it_may_be_negative(
    viewer_browser: Client, run: Run, attempt: Attempt
) -> None:
    Metric.objects.create(run=run, attempt=attempt, step=1, values={"loss": -0.5, "kl": 0.0})
    html = viewer_browser.get(f"/p/shop/runs/{run.pk}").text
    for hint in (hint for name, _, _, hint in CHARTS if name in {"loss", "kl"}):
        assert f'<p class="small faint">{hint}</p>' in html
    data = json.loads(html.split('id="curve-data"')[1].split(">", 1)[1].split("</script>")[0])
    assert {curve["name"]: curve["from_zero"] for curve in data} == {"loss": False, "kl": True}
