"""A project's home."""

from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from apps.accounts.models import Project
from apps.console.queries.counting import count_up_to
from apps.console.queries.home import read_loop, read_set_up
from apps.registry.models import Engine, EngineState
from apps.training.models import Run
from apps.trajectories.models import Trajectory


def test_the_loop_is_counted(project: Project, ready: list[Trajectory], trajectory: Trajectory) -> None:
    loop = read_loop(project)
    counts = [str(count) for count in (loop.captured, loop.rewarded, loop.trained, loop.versions, loop.served)]
    assert counts == ["3", "2", "0", "1", "3"]


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


def test_the_home_shows_the_newest_trajectories(
    owner_browser: Client, add_trajectory: Callable[..., Trajectory]
) -> None:
    for number in range(10):
        add_trajectory(title=f"Question {number}")
    html = owner_browser.get("/p/shop/").content.decode()
    assert "Question 9" in html
    assert "Question 1<" not in html
