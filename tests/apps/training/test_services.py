"""Launching, cancelling and resuming runs."""

import threading
from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, AuditEvent, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.registry import services as registry
from apps.registry.models import Policy, Version
from apps.training import services
from apps.training.attempts import claim_attempt
from apps.training.models import Run, RunState
from apps.training.pool import Pool
from apps.training.selection import read_selection
from apps.trajectories.datasets.services import take_snapshot
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import RECIPE, AddTrajectory, LaunchRun, claim
from tests.factories.datasets import DatasetFactory, MemberFactory

Ready = list[Trajectory]


def test_a_run_starts_from_what_is_live_and_is_queued(launch: LaunchRun, two_ready: Ready, base: Version) -> None:
    run = launch()
    assert (run.state, run.start_version, run.n_steps) == (RunState.QUEUED, base, 3)
    assert run.recipe["learning_rate"] == 5e-4  # defaults are stored with the run
    assert run.selection["channel"] == "train"
    assert AuditEvent.objects.filter(action="run.launched", object_id=run.id).exists()
    assert run.events.get().kind == "run.launched"


def test_a_queued_run_says_its_place(
    launch: LaunchRun, two_ready: Ready, other_project: Project, owner_caller: Caller
) -> None:
    run = launch()
    assert run.describe_now() == "waits for a worker"
    policy = registry.ensure_policy(
        project=other_project, slug="other", base_model="tiny", base_model_dir="models/tiny"
    )
    Run.objects.create(
        id="run_00" + run.id[6:],
        project=other_project,
        policy=policy,
        start_version=policy.versions.get(),
        recipe={},
        n_steps=1,
        state=RunState.RUNNING,
    )
    assert run.describe_now() == "waits for a worker; runs before it: 1"


def test_launching_queues_the_task_after_commit(
    launch: LaunchRun,
    two_ready: Ready,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Callable[..., object],
) -> None:
    sent: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("apps.core.jobs.current_app.send_task", lambda name, args, **_: sent.append((name, args)))
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
        run = launch()
    assert sent == [("claw.train_run", [run.id])]


def test_the_same_idempotency_key_returns_the_same_run(
    project: Project, owner_caller: Caller, two_ready: Ready
) -> None:
    runs = [
        services.launch_run(project=project, caller=owner_caller, recipe=RECIPE, selection={}, idempotency_key="monday")
        for _ in range(2)
    ]
    assert runs[0].pk == runs[1].pk
    with pytest.raises(Conflict, match="another run"):
        services.launch_run(
            project=project, caller=owner_caller, recipe=RECIPE | {"seed": 7}, selection={}, idempotency_key="monday"
        )
    assert Run.objects.count() == 1


def test_a_second_run_in_the_project_is_refused(launch: LaunchRun, two_ready: Ready) -> None:
    launch()
    with pytest.raises(Conflict, match="queued in this project"):
        launch()


def test_the_database_refuses_a_second_active_run(launch: LaunchRun, two_ready: Ready) -> None:
    run = launch()
    run.pk = None
    run.id = "run_other"
    with pytest.raises(IntegrityError, match="one_active_run_a_project"), transaction.atomic():
        run.save(force_insert=True)


def test_a_viewer_or_reviewer_may_not_launch(
    project: Project, viewer: User, mate: User, key: ApiKey, two_ready: Ready
) -> None:
    for caller in (Caller(user=viewer), Caller(user=mate), Caller(key=key)):
        with pytest.raises(Forbidden, match="needs the role trainer"):
            services.launch_run(project=project, caller=caller, recipe=RECIPE, selection={})


def test_a_stranger_sees_no_project(project: Project, stranger: User, two_ready: Ready) -> None:
    with pytest.raises(NotFound):
        services.launch_run(project=project, caller=Caller(user=stranger), recipe=RECIPE, selection={})


def test_a_project_without_a_policy_has_nothing_to_train(project: Project, owner_caller: Caller) -> None:
    with pytest.raises(Conflict, match="no policy yet"):
        services.launch_run(project=project, caller=owner_caller, recipe=RECIPE, selection={})


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        ({"learning_rte": 1.0}, "recipe.learning_rte"),
        ({"n_steps": 0}, "recipe.n_steps"),
        ({"n_steps": "x"}, "recipe.n_steps"),
    ],
)
def test_an_unknown_or_wrong_setting_is_named(
    launch: LaunchRun, two_ready: Ready, recipe: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        launch(**recipe)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("selection", "field"),
    [
        ({"chanel": "train"}, "selection.chanel"),
        ({"channel": "test"}, "selection.channel"),
        ({"snapshot": "the first"}, "selection.snapshot"),
        ({"min_reward": 2}, "selection.min_reward"),
        ({"min_reward": 0.5, "max_reward": 0.1}, "selection"),
        ({"since": "2026-01-02T00:00:00"}, "selection.since"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "selection"),
    ],
)
def test_a_wrong_selection_is_named(
    launch: LaunchRun, two_ready: Ready, selection: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        launch(selection=selection)
    assert caught.value.field == field


def test_an_empty_selection_is_refused_with_the_reasons(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    add_trajectory(state="open", completed_at=None)
    add_trajectory(reward=None)
    add_trajectory(reward=None)
    add_trajectory(is_excluded=True)
    add_trajectory(steps=[{"is_exact": False}])
    with pytest.raises(InvalidInput) as caught:
        launch()
    words = caught.value.message
    assert "1 still open" in words
    assert "2 without a reward" in words
    assert "1 kept out by a person" in words
    assert "1 without a step to train on" in words


def test_a_selection_that_matches_nothing_says_so(launch: LaunchRun, two_ready: Ready) -> None:
    with pytest.raises(InvalidInput, match="matches no trajectory at all"):
        launch(selection={"agent": "nobody"})


def test_a_snapshot_narrows_to_what_it_holds(
    launch: LaunchRun, two_ready: Ready, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    dataset = DatasetFactory.create(project=two_ready[0].project)
    for row in two_ready:
        MemberFactory.create(dataset=dataset, trajectory=row)
    add_trajectory()
    snapshot = take_snapshot(dataset=dataset, caller=owner_caller)
    run = launch(selection={"snapshot": snapshot.id})
    pool = Pool(policy=run.policy, selection=read_selection(run.selection), line={run.start_version_id: 0})
    assert list(pool.ready()) == two_ready


def test_a_snapshot_of_another_project_holds_nothing(
    launch: LaunchRun, two_ready: Ready, stranger: User, other_project: Project
) -> None:
    member = MemberFactory.create(dataset__project=other_project)
    snapshot = take_snapshot(dataset=member.dataset, caller=Caller(user=stranger))
    with pytest.raises(InvalidInput, match="matches no trajectory at all"):
        launch(selection={"snapshot": snapshot.id})


def test_all_equal_rewards_are_refused(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for _ in range(3):
        add_trajectory(reward=0.7)
    with pytest.raises(InvalidInput, match="all 3 rewards equal their baseline"):
        launch()


def test_an_estimator_for_rates_wants_rewards_of_zero_or_more(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(reward=reward, group="a")
    with pytest.raises(InvalidInput) as caught:
        launch(estimator="maxrl", group_size=2)
    assert caught.value.field == "selection.min_reward"
    assert launch(estimator="maxrl", group_size=2, selection={"min_reward": 0}).recipe["estimator"] == "maxrl"


def test_equal_rewards_may_be_launched_where_length_costs(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for _ in range(2):
        add_trajectory(reward=1.0)
    assert launch(overlong_tokens=100, overlong_window=10).state == RunState.QUEUED


def test_live_traffic_has_no_groups_and_the_group_estimator_says_so(launch: LaunchRun, two_ready: Ready) -> None:
    with pytest.raises(InvalidInput, match="no group has 2 ready tries") as caught:
        launch(estimator="rloo", group_size=2)
    assert caught.value.field == "recipe.estimator"


def test_groups_whose_rewards_are_equal_are_refused(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for group in ("a", "b"):
        for _ in range(2):
            add_trajectory(reward=1.0 if group == "a" else 0.0, group=group)
    with pytest.raises(InvalidInput, match="every advantage would be zero"):
        launch(estimator="rloo", group_size=2)


def test_a_queued_run_is_cancelled_at_once(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    run = services.cancel_run(run=launch(), caller=owner_caller)
    assert run.state == RunState.CANCELLED
    assert run.ended_at is not None
    assert claim_attempt(run.id, host="here") is None


def test_a_running_run_is_asked_to_end(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    run = launch()
    claim(run)
    assert services.cancel_run(run=run, caller=owner_caller).state == RunState.CANCELLING
    assert services.cancel_run(run=run, caller=owner_caller).state == RunState.CANCELLING  # twice is once


def test_a_run_that_has_ended_cannot_be_cancelled(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    run = services.cancel_run(run=launch(), caller=owner_caller)
    with pytest.raises(Conflict, match="has ended already"):
        services.cancel_run(run=run, caller=owner_caller)


def test_a_cancelled_run_can_go_on(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    run = services.cancel_run(run=launch(), caller=owner_caller)
    run = services.resume_run(run=run, caller=owner_caller)
    assert (run.state, run.ended_at) == (RunState.QUEUED, None)
    assert claim_attempt(run.id, host="here") is not None


def test_only_ended_runs_can_be_resumed(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    with pytest.raises(Conflict, match="only a failed or cancelled run"):
        services.resume_run(run=launch(), caller=owner_caller)


def test_a_run_is_not_resumed_beside_another(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    first = services.cancel_run(run=launch(), caller=owner_caller)
    launch()
    with pytest.raises(Conflict, match="in this project"):
        services.resume_run(run=first, caller=owner_caller)


def test_a_viewer_may_neither_cancel_nor_resume(launch: LaunchRun, two_ready: Ready, viewer: User) -> None:
    run = launch()
    for change in (services.cancel_run, services.resume_run):
        with pytest.raises(Forbidden):
            change(run=run, caller=Caller(user=viewer))


@pytest.mark.django_db(transaction=True)
def test_of_many_launches_at_once_one_wins(
    project: Project, owner_caller: Caller, policy: Policy, two_ready: Ready
) -> None:
    outcomes: list[str] = []

    def launch_one() -> None:
        try:
            services.launch_run(project=project, caller=owner_caller, recipe=RECIPE, selection={})
            outcomes.append("launched")
        except Conflict:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=launch_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["launched"] + ["refused"] * 5
