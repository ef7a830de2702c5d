"""Graders at work: what is completed is graded once, claims grow old, people outrank them."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.feedback.graders.models import DryRun, Grader, GraderVersion, Grading, GradingState, WorkState
from apps.feedback.graders.running import grade_due, line_up, line_up_finished, release_old_claims
from apps.feedback.graders.services import VersionDraft, add_version, switch_on
from apps.feedback.graders.tending import tend_graders
from apps.feedback.models import Label, Source
from apps.feedback.services import add_label, take_back_label
from apps.trajectories.models import Trajectory, TrajectoryState
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, go_on, grade_all, state_of
from tests.factories.feedback import LabelFactory
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


class TestLive:
    def test_what_is_completed_after_it_was_switched_on_is_graded(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        before = make_trajectory("sorry")
        version = make_version("regex", settings={"pattern": "sorry", "must_match": False})
        switch_on(caller=caller, version=version)
        Grader.objects.update(seen_until=timezone.now() - timedelta(seconds=1))
        after = make_trajectory("sorry")
        Trajectory.objects.filter(pk=after.pk).update(completed_at=timezone.now())
        tend_graders()
        go_on(version)
        label = Label.objects.get()
        assert (label.trajectory_id, label.value, label.source, label.grader) == (after.pk, -1, Source.RULE, version)
        after.refresh_from_db()
        before.refresh_from_db()
        assert (after.reward, before.reward) == (-1, None)
        assert line_up_finished(Grader.objects.select_related("live", "project").get()) == 0

    def test_what_an_earlier_version_had_still_to_grade_is_left(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        first = make_version("regex", settings={"pattern": "x"})
        switch_on(caller=caller, version=first)
        trajectory = make_trajectory()
        line_up(first, [trajectory.pk])
        second = add_version(caller=caller, grader=first.grader, draft=VersionDraft(settings={"pattern": "y"}))
        DryRun.objects.create(version=second, n_wanted=1, state=WorkState.DONE)
        switch_on(caller=caller, version=second)
        assert state_of(trajectory) == (GradingState.SKIPPED, "v2 was switched on")

    def test_a_search_that_is_understood_no_more_stops_no_other_grader(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        for name in ("a", "b"):
            switch_on(caller=caller, version=make_version("regex", name=name, settings={"pattern": "x"}))
        first, second = Grader.objects.order_by("name")
        odd = GraderVersion.objects.create(grader=first, number=2, settings={"pattern": "x"}, query="gone:1")
        Grader.objects.filter(pk=first.pk).update(live=odd)
        Grader.objects.update(seen_until=timezone.now() - timedelta(minutes=1))
        make_trajectory()
        tend_graders()
        assert [row.version.grader for row in Grading.objects.all()] == [second]

    def test_its_query_and_its_sample_choose(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        version = make_version("regex", settings={"pattern": "x"}, query="group:a", sample=0.5)
        switch_on(caller=caller, version=version)
        Grader.objects.update(seen_until=timezone.now() - timedelta(hours=1))
        for _ in range(20):
            make_trajectory("x", group="a")
        make_trajectory("x", group="b")
        tend_graders()
        go_on(version)
        n_graded = Label.objects.count()
        assert 2 <= n_graded <= 18  # of 20, by chance but never all or none in practice
        skipped = Grading.objects.filter(state=GradingState.SKIPPED, error="not in the sample")
        assert skipped.count() == 20 - n_graded

    def test_an_open_trajectory_waits(self, make_version: MakeVersion, make_trajectory: MakeTrajectory) -> None:
        trajectory = make_trajectory("x")
        Trajectory.objects.update(state=TrajectoryState.OPEN, completed_at=None)
        version = make_version("regex", settings={"pattern": "x"})
        line_up(version, [trajectory.pk])
        assert not grade_due(version.pk)
        assert state_of(trajectory)[0] == GradingState.WAITING
        assert Grading.objects.get().n_tries == 0

    def test_whom_a_webhook_asks_to_wait_waits(
        self, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory("x")
        version = make_version("webhook", settings={"url": webhook.url})
        waits_s = []
        for webhook.headers in ({"Retry-After": "900"}, {"Retry-After": "1"}):
            webhook.status = 429
            line_up(version, [trajectory.pk])
            Grading.objects.update(due_at=timezone.now())
            grade_due(version.pk)
            waits_s.append((Grading.objects.get().due_at - timezone.now()).total_seconds())
        assert waits_s == [pytest.approx(900, abs=20), pytest.approx(120, abs=20)]
        assert state_of(trajectory) == (GradingState.WAITING, "the webhook answered 429")


class TestOnce:
    def test_a_version_labels_a_target_once(self, make_version: MakeVersion, make_trajectory: MakeTrajectory) -> None:
        make_trajectory("x")
        version = make_version("regex", settings={"pattern": "x"})
        grade_all(version)
        Grading.objects.update(state=GradingState.WAITING)  # as if the worker had died after the labels were written
        go_on(version)
        assert Label.objects.standing().count() == 1
        with pytest.raises(IntegrityError, match="grader_labels_a_target_once"), transaction.atomic():
            LabelFactory.create(trajectory=Trajectory.objects.get(), grader=version, source=Source.RULE)

    def test_a_new_version_supersedes_the_old_ones_labels(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory("x")
        first = make_version("regex", settings={"pattern": "x"})
        grade_all(first)
        second = add_version(caller=caller, grader=first.grader, draft=VersionDraft(settings={"pattern": "y"}))
        grade_all(second)
        assert [label.grader for label in Label.objects.standing()] == [second]
        trajectory.refresh_from_db()
        assert trajectory.reward == -1

    def test_two_graders_stand_side_by_side(self, make_version: MakeVersion, make_trajectory: MakeTrajectory) -> None:
        trajectory = make_trajectory("x")
        for name, pattern in (("one", "x"), ("other", "y")):
            grade_all(make_version("regex", name=name, settings={"pattern": pattern}))
        trajectory.refresh_from_db()
        assert trajectory.reward == 0

    def test_a_claim_that_grew_old_is_taken_up_and_at_last_given_up(
        self, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory("x")
        version = make_version("regex", settings={"pattern": "x"})
        line_up(version, [trajectory.pk])
        old = {"state": GradingState.RUNNING, "claimed_at": timezone.now() - timedelta(hours=1)}
        Grading.objects.update(**old, n_tries=1)
        assert release_old_claims() == 1
        Grading.objects.update(**old, n_tries=4)
        assert release_old_claims() == 0
        assert state_of(trajectory) == (GradingState.FAILED, "its worker ended each time")

    def test_a_person_outranks_it_and_may_take_it_back(
        self, caller: Caller, mate: User, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory("x")
        grade_all(make_version("regex", settings={"pattern": "x"}))
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=-0.5)
        assert trajectory.reward == -0.5
        take_back_label(caller=caller, label=Label.objects.get(source=Source.RULE))
        assert Label.objects.standing().count() == 1
