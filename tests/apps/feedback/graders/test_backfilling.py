"""Back-fills: what is in the pool already is graded, and what failed is taken up again."""

import pytest

from apps.accounts.access import Caller
from apps.feedback.graders import backfilling
from apps.feedback.graders.backfilling import count_gradable, end_backfills, fill_backfill, read_progress
from apps.feedback.graders.models import Backfill, Grading, WorkState
from apps.feedback.graders.running import is_sampled, line_up
from apps.feedback.graders.services import cancel_backfill, start_backfill
from apps.feedback.models import Label
from apps.trajectories.models import Trajectory
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, go_on, grade_all
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


class TestBackfill:
    def test_it_grades_what_is_there_and_tells_how_far_it_is(
        self,
        caller: Caller,
        make_version: MakeVersion,
        make_trajectory: MakeTrajectory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        trajectories = [make_trajectory("x", group="a") for _ in range(3)]
        make_trajectory("x", group="b")
        version = make_version("regex", settings={"pattern": "x"})
        line_up(version, [trajectories[0].pk])
        go_on(version)
        backfill = start_backfill(caller=caller, version=version, query="group:a")
        late = make_trajectory("x", group="a")
        fill_backfill(backfill.pk)
        assert end_backfills() == 0
        go_on(version)
        progress = read_progress(backfill)
        assert (progress.n_total, progress.n_graded, progress.n_looked_at) == (2, 2, 2)
        told: list[str] = []

        def note(_project_id: str, *, kind: str, object_id: str) -> None:
            told.append(f"{kind} {object_id}")

        monkeypatch.setattr(backfilling, "publish_news", note)
        assert end_backfills() == 1
        assert told == [f"grader {version.grader_id}"]  # an open page shows that it is done
        backfill.refresh_from_db()
        assert backfill.state == WorkState.DONE
        assert not Label.objects.filter(trajectory=late).exists()
        assert Label.objects.count() == 3

    def test_it_takes_up_again_what_failed(
        self, caller: Caller, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        make_trajectory()
        webhook.status = 404
        version = make_version("webhook", settings={"url": webhook.url})
        grade_all(version)
        webhook.status = 200
        backfill = start_backfill(caller=caller, version=version)
        fill_backfill(backfill.pk)
        go_on(version)
        assert Label.objects.count() == 1

    def test_what_had_failed_or_was_skipped_stays_so_where_it_is_stopped(
        self, caller: Caller, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        failed, skipped, _ = (make_trajectory() for _ in range(3))
        version = make_version("webhook", settings={"url": webhook.url})
        first = Backfill.objects.create(version=version, state=WorkState.DONE)
        Grading.objects.create(version=version, trajectory=failed, state="failed", error="no answer", backfill=first)
        Grading.objects.create(version=version, trajectory=skipped, state="skipped", error="nothing to grade")
        before = list(Grading.objects.order_by("pk").values("pk", "trajectory", "state", "error", "backfill", "before"))
        backfill = start_backfill(caller=caller, version=version)
        fill_backfill(backfill.pk)
        assert read_progress(backfill).n_waiting == 3
        cancel_backfill(caller=caller, backfill=backfill)
        after = list(Grading.objects.order_by("pk").values("pk", "trajectory", "state", "error", "backfill", "before"))
        assert after == before

    def test_it_counts_beforehand_what_it_would_grade_and_keeps_to_the_sample(
        self,
        caller: Caller,
        make_version: MakeVersion,
        make_trajectory: MakeTrajectory,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for group in ("a", "b"):
            for _ in range(10):
                make_trajectory("x", group=group)
        version = make_version("regex", settings={"pattern": "x"}, sample=0.5)
        n = count_gradable(caller=caller, version=version, query="group:a")
        assert n == sum(is_sampled(version, row.pk) for row in Trajectory.objects.filter(group="a"))
        for _ in range(2):  # what the sample left out the first time is left out the second time too
            fill_backfill(start_backfill(caller=caller, version=version, query="group:a").pk)
            go_on(version)
            end_backfills()
            assert Label.objects.count() == n
        assert count_gradable(caller=caller, version=version, query="group:a") == 0
        monkeypatch.setattr(backfilling, "MOST_COUNTED", 9)
        assert count_gradable(caller=caller, version=version, query="group:b") is None
