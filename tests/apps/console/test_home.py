"""A project's home."""

import re
from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.console.queries.counting import count_up_to
from apps.console.queries.home import list_projects, read_loop, read_set_up
from apps.registry.models import AliasName, Engine, EngineState, Version
from apps.training.models import Batch, BatchState, BatchTrajectory, Run, RunState
from apps.training.services import launch_run
from apps.trajectories.models import Trajectory
from tests.factories.registry import AliasFactory, EngineFactory, VersionFactory


def test_the_loop_is_counted(project: Project, ready: list[Trajectory], trajectory: Trajectory) -> None:
    loop = read_loop(project)
    counts = [str(count) for count in (loop.captured, loop.rewarded, loop.trained, loop.versions, loop.served)]
    assert counts == ["3", "2", "0", "1", "3"]


def test_what_was_trained_on_twice_counts_once(project: Project, run: Run, ready: list[Trajectory]) -> None:
    for step in (1, 2):
        batch = Batch.objects.create(run=run, step=step, state=BatchState.TRAINED, n_samples=2)
        for row in ready:
            BatchTrajectory.objects.create(
                batch=batch, policy=run.policy, trajectory=row, reward=row.reward, use=f"{run.id}/{step}"
            )
    assert str(read_loop(project).trained) == "2"


def test_where_nothing_trains_the_home_says_what_there_is_to_do(
    owner_browser: Client, ready: list[Trajectory], project: Project
) -> None:
    def read() -> str:
        part = owner_browser.get("/p/shop/").content.decode().split('id="home-runs"')[1].split("</section>")[0]
        return " ".join(re.sub(r"<[^>]+>", "", part).split())

    assert "Launch a run on what has a reward" in read()
    Trajectory.objects.update(reward=None)
    assert "A run can be launched once some trajectories have rewards" in read()
    Trajectory.objects.update(reward=1.0)
    run = launch_run(
        project=project,
        caller=Caller(key=None, user=project.team.memberships.get(role="owner").user),
        recipe={"algorithm": "sft"},
        selection={},
        name="first",
    )
    Run.objects.filter(pk=run.pk).update(state=RunState.FAILED, ended_at=timezone.now())
    said = read()
    assert "The last run, first, failed just now." in said
    assert "Launch" not in said


def test_programs_are_told_the_name_that_works_in_every_project(owner_browser: Client, base: Version) -> None:
    html = owner_browser.get("/p/shop/").content.decode()
    assert "&quot;model&quot;: &quot;default&quot;" in html
    assert "the same as <code>shop</code>" in html


def test_counts_stop_at_their_limit(ready: list[Trajectory], trajectory: Trajectory) -> None:
    assert str(count_up_to(Trajectory.objects.all(), limit=2)) == "2+"
    assert str(count_up_to(Trajectory.objects.all(), limit=3)) == "3"


def test_a_new_project_teaches_what_to_do_first(owner_browser: Client, project: Project) -> None:
    html = owner_browser.get("/p/shop/").content.decode()
    assert "0 of 6" in html
    assert "Waiting for the first call" in html


def test_the_set_up_list_follows_what_is_done(project: Project, run: Run) -> None:
    set_up = read_set_up(project)
    assert (set_up.n_done, set_up.has_version) == (5, False)


def test_the_home_shows_runs_under_way(owner_browser: Client, run: Run) -> None:
    html = owner_browser.get("/p/shop/").content.decode()
    assert f"/p/shop/runs/{run.id}" in html
    assert "0/3" in html


def test_a_dead_engine_is_said_first(owner_browser: Client, project: Project) -> None:
    engine = Engine.objects.create(base_url="http://127.0.0.1:9", state=EngineState.DOWN, last_error="refused")
    assert "is starting, or is not there" in owner_browser.get("/p/shop/").content.decode()
    Engine.objects.filter(pk=engine.pk).update(last_seen_at=timezone.now())
    assert "does not answer" in owner_browser.get("/p/shop/").content.decode()


def test_the_home_says_whether_what_is_live_answers(owner_browser: Client, project: Project, base: Version) -> None:
    def read() -> str:
        return owner_browser.get("/p/shop/").content.decode().split('id="home-lead"')[1].split("</p>")[0]

    assert "no engine is known" in read()
    engine = EngineFactory.create(base_model=base.policy.base_model, state=EngineState.UNKNOWN, last_seen_at=None)
    assert "its engine is starting: agents get errors until it answers" in read()
    Engine.objects.filter(pk=engine.pk).update(state=EngineState.DOWN, last_seen_at=timezone.now())
    assert "no engine answers" in read()
    Engine.objects.filter(pk=engine.pk).update(state=EngineState.UP)
    assert "answers. It went live <time" in read()
    Engine.objects.filter(pk=engine.pk).update(base_model="another")
    assert "no engine answers" in read()


def test_the_home_says_who_answers_which_part_of_split_calls(owner_browser: Client, base: Version) -> None:
    EngineFactory.create(base_model=base.policy.base_model, state=EngineState.UP)
    trained = VersionFactory.create(policy=base.policy, number=1, parent=base, adapter_path="/runs/1")
    AliasFactory.create(version=trained, name=AliasName.CANDIDATE, live_share=30)

    lead = owner_browser.get("/p/shop/").content.decode().split('id="home-lead"')[1].split("</p>")[0]

    said = " ".join(re.sub(r"<[^>]+>", "", lead.partition(">")[2]).split())
    assert said == "Version 0 answers 70 % of the calls, version 1 answers 30 %. Version 0 went live just now."


def test_the_home_shows_the_newest_trajectories(
    owner_browser: Client, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(10):
        add_trajectory(title=f"Question {number}")
    html = owner_browser.get("/p/shop/").content.decode()
    assert "Question 9" in html
    assert "Question 1<" not in html


def test_what_is_deleted_is_not_counted(
    owner_browser: Client, project: Project, owner: User, add_trajectory: Callable[..., Trajectory]
) -> None:
    add_trajectory(title="It stays", reward=1.0)
    add_trajectory(title="It is gone", deleted_at=timezone.now(), reward=1.0)
    loop = read_loop(project)
    assert (str(loop.captured), str(loop.rewarded)) == ("1", "1")
    [card] = list_projects(owner)
    assert (str(card.n_trajectories), str(card.n_unrewarded)) == ("1", "0")
    html = owner_browser.get("/p/shop/").content.decode()
    assert "It stays" in html
    assert "It is gone" not in html


def test_only_staff_sees_where_the_platforms_engines_are(owner_browser: Client, owner: User, base: Version) -> None:
    engine = Engine.objects.create(base_url="http://10.9.8.7:8100", state=EngineState.DOWN)
    for page in ("/p/shop/", "/p/shop/models"):
        html = owner_browser.get(page).content.decode()
        assert "10.9.8.7" not in html
        assert engine.id[-6:] in html
    User.objects.filter(pk=owner.pk).update(is_staff=True)
    for page in ("/p/shop/", "/p/shop/models"):
        assert "10.9.8.7" in owner_browser.get(page).content.decode()
