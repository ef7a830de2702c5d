"""A made-up pool is a whole one, and a seeding that was stopped goes on."""

import pytest
from django.contrib.postgres.search import SearchQuery
from django.core.management import CommandError, call_command

from apps.accounts.models import Project
from apps.feedback.models import Label
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.search.models import TrajectoryText
from apps.trajectories.search.words import CONFIG
from apps.trajectories.trie import load_context, load_steps
from clawplatform import pool_seeding

pytestmark = pytest.mark.django_db


def seed(project: Project, n: int) -> None:
    call_command("seed_pool", "--project", project.slug, "--trajectories", str(n), "--steps", "3", verbosity=0)


def test_it_makes_whole_trajectories(project: Project) -> None:
    seed(project, 20)
    assert (Trajectory.objects.count(), Step.objects.count()) == (20, 60)
    assert set(Trajectory.objects.values_list("project_id", flat=True)) == {project.id}
    trajectory = Trajectory.objects.order_by("id")[3]
    views = load_steps(trajectory)
    assert [len(view.prompt_ids) for view in views] == [60, 160, 260]
    assert [len(view.messages) for view in views] == [1, 3, 5]
    assert trajectory.n_prompt_tokens == 480
    assert list(load_context(views[2].row.id).messages) == [*views[2].messages, views[2].answer]
    word = trajectory.title.split()[0]
    assert TrajectoryText.objects.filter(trajectory=trajectory, words=SearchQuery(word, config=CONFIG)).exists()
    rewards = dict(Trajectory.objects.exclude(reward=None).values_list("id", "reward"))
    assert rewards == dict(Label.objects.values_list("trajectory_id", "value"))


def test_it_goes_on_where_it_stopped(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_seeding, "CHUNK", 4)
    seed(project, 6)
    first = list(Trajectory.objects.order_by("id").values_list("id", flat=True))
    seed(project, 10)
    seed(project, 10)
    ids = list(Trajectory.objects.order_by("id").values_list("id", flat=True))
    assert (ids[:6], len(ids)) == (first, 10)
    names = list(Trajectory.objects.order_by("id").values_list("session_key", flat=True))
    assert names == [f"seed-{number:09d}" for number in range(10)]


def test_what_makes_no_sense_is_refused(project: Project) -> None:
    with pytest.raises(CommandError, match="at least 1"):
        seed(project, 0)
    with pytest.raises(CommandError, match="no project 'nowhere'"):
        call_command("seed_pool", "--project", "nowhere")
