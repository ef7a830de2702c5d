"""All that a grader said is taken back in one job, and said again by its undo."""

from typing import Any

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.errors import Conflict, Forbidden, NotFound
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.backfilling import fill_backfill
from apps.feedback.graders.models import TAKEN_BACK, Grading
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.graders.services import VersionDraft, add_version, start_backfill
from apps.feedback.graders.taking_back import TAKE_BACK, count_said, take_back_all
from apps.feedback.models import Label
from apps.feedback.services import add_label
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.running import run_job
from apps.trajectories.bulk.services import start_job, undo_job
from apps.trajectories.models import Trajectory
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, go_on, grade_all, state_of
from tests.factories.accounts import ProjectFactory
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.django_db

RULE: dict[str, Any] = {"settings": {"pattern": "yes"}}


def finish(job: BulkJob) -> BulkJob:
    run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    return job


def reward_of(trajectory: Trajectory) -> float | None:
    trajectory.refresh_from_db()
    return trajectory.reward


def standing() -> list[tuple[str, float | None]]:
    return list(Label.objects.standing().order_by("trajectory").values_list("trajectory", "value"))


class TestTakingBack:
    def test_labels_of_all_versions_go_and_rewards_follow(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        rows = [make_trajectory(text) for text in ("yes", "no")]
        version, other = make_version("regex", **RULE), make_version("regex", name="other", **RULE)
        grade_all(version)
        line_up(other, [rows[1].pk])
        go_on(other)
        newer = add_version(caller=caller, grader=version.grader, draft=VersionDraft(**RULE))
        line_up(newer, [rows[0].pk])
        go_on(newer)
        assert count_said(version.grader, caller=caller) == 2
        job = finish(take_back_all(caller=caller, grader=version.grader))
        assert (job.n_done, job.n_changed, job.n_failed) == (2, 2, 0)
        assert standing() == [(rows[1].pk, -1)]  # what the other one said stays
        assert [reward_of(row) for row in rows] == [None, -1]
        assert count_said(version.grader, caller=caller) == 0
        with pytest.raises(Conflict, match="nothing that grader said stands"):
            take_back_all(caller=caller, grader=version.grader)

    def test_it_is_not_said_again_by_itself_but_by_a_new_backfill(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        row = make_trajectory("yes")
        version = make_version("regex", **RULE)
        grade_all(version)
        finish(take_back_all(caller=caller, grader=version.grader))
        assert state_of(row) == ("skipped", TAKEN_BACK)
        grade_all(version)
        assert standing() == []
        fill_backfill(start_backfill(caller=caller, version=version).pk)
        go_on(version)
        assert reward_of(row) == 1

    def test_a_new_try_of_a_group_does_not_have_the_others_judged_again(
        self, caller: Caller, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        engine.script.pieces = ['{"scores": [0.25, 1], "reason": "b is right"}']
        for text in ("a", "b"):
            make_trajectory(text, group="g")
        version = make_version("relative")
        grade_all(version)
        finish(take_back_all(caller=caller, grader=version.grader))
        engine.script.pieces = ['{"scores": [0, 0.25, 1], "reason": "c is right"}']
        new = make_trajectory("c", group="g")
        grade_all(version)
        assert standing() == [(new.pk, 1)]

    def test_a_backfill_under_way_is_waited_for(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        make_trajectory("yes")
        version = make_version("regex", **RULE)
        grade_all(version)
        start_backfill(caller=caller, version=version)
        with pytest.raises(Conflict, match="under way"):
            take_back_all(caller=caller, grader=version.grader)
        assert not BulkJob.objects.exists()

    def test_only_trainers_may(self, mate: User, make_version: MakeVersion, make_trajectory: MakeTrajectory) -> None:
        make_trajectory("yes")
        version = make_version("regex", **RULE)
        grade_all(version)
        with pytest.raises(Forbidden):
            take_back_all(caller=Caller(user=mate), grader=version.grader)

    def test_another_projects_grader_is_none(self, caller: Caller, make_version: MakeVersion) -> None:
        version = make_version("regex", **RULE)
        theirs = ProjectFactory.create(team=version.grader.project.team)
        settings = {"grader": version.grader_id}
        with pytest.raises(NotFound, match="has no grader"):
            start_job(caller=caller, project=theirs, action=TAKE_BACK, settings=settings, query="")


class TestUndo:
    def test_it_says_it_again(self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory) -> None:
        rows = [make_trajectory(text) for text in ("yes", "no")]
        version = make_version("regex", **RULE)
        grade_all(version)
        before = standing()
        job = finish(take_back_all(caller=caller, grader=version.grader))
        job = finish(undo_job(caller=caller, job=job, action=TAKE_BACK))
        assert (job.state, job.n_undone) == ("undone", 2)
        assert standing() == before
        assert {label.grader_id for label in Label.objects.standing()} == {version.pk}
        assert [reward_of(row) for row in rows] == [1, -1]
        assert [state_of(row) for row in rows] == [("done", "")] * 2

    def test_what_it_has_said_since_stays_its_last_word(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        row = make_trajectory("yes")
        version = make_version("regex", **RULE)
        grade_all(version)
        job = finish(take_back_all(caller=caller, grader=version.grader))
        draft = VersionDraft(settings={"pattern": "no"})
        newer = add_version(caller=caller, grader=version.grader, draft=draft)
        line_up(newer, [row.pk])
        assert grade_due(newer.pk)
        finish(undo_job(caller=caller, job=job, action=TAKE_BACK))
        assert standing() == [(row.pk, -1)]
        assert Grading.objects.get(version=version).state == "done"

    def test_a_persons_word_stays_before_it(
        self, caller: Caller, mate: User, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        row = make_trajectory("yes")
        version = make_version("regex", **RULE)
        grade_all(version)
        job = finish(take_back_all(caller=caller, grader=version.grader))
        add_label(caller=Caller(user=mate), trajectory=row, value=-0.5)
        finish(undo_job(caller=caller, job=job, action=TAKE_BACK))
        assert reward_of(row) == -0.5
