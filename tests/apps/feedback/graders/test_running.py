"""Graders at work: what is completed is graded once, failures are tried again, budgets hold, people are compared."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.graders import kinds, plugins
from apps.feedback.graders.backfilling import end_backfills, fill_backfill, read_progress
from apps.feedback.graders.models import DryRun, Grader, GraderVersion, Grading, GradingState, WorkState
from apps.feedback.graders.people import read_agreement
from apps.feedback.graders.running import grade_due, line_up, line_up_finished, release_old_claims
from apps.feedback.graders.services import VersionDraft, add_version, start_backfill, start_dry_run, switch_on
from apps.feedback.graders.tending import tend_graders
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label, Source
from apps.feedback.rescoring import change_schema
from apps.feedback.services import add_label, take_back_label
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion
from tests.factories.feedback import LabelFactory
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.factories.trajectories import StepFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


def grade_all(version: GraderVersion) -> None:
    """Line up every trajectory and grade until nothing is due."""
    line_up(version, list(Trajectory.objects.order_by("pk").values_list("pk", flat=True)))
    go_on(version)


def go_on(version: GraderVersion) -> None:
    for _ in range(20):
        if not grade_due(version.pk):
            return
    raise AssertionError


def state_of(trajectory: Trajectory) -> tuple[str, str]:
    row = Grading.objects.get(trajectory=trajectory)
    return row.state, row.error


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


class TestJudge:
    def test_the_live_model_judges_and_nothing_of_it_is_captured(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory("hi")
        engine.script.pieces = ['{"score": 0.5, ', '"reason": "polite"}']
        version = make_version("judge")
        grade_all(version)
        label = Label.objects.get()
        assert (label.value, label.text, label.source, label.step) == (0.5, "polite", Source.JUDGE, None)
        [call] = engine.calls
        assert call.body["model"] == "tiny"
        assert "hello" in call.body["messages"][0]["content"]
        assert Trajectory.objects.get() == trajectory
        assert Step.objects.count() == 1

    def test_a_teacher_judges_on_the_scale_of_a_field(
        self,
        caller: Caller,
        project: Project,
        engine: FakeEngine,
        make_version: MakeVersion,
        make_trajectory: MakeTrajectory,
    ) -> None:
        stars = {"name": "stars", "kind": "scale", "low": 1, "high": 5}
        change_schema(caller=caller, project=project, definition={"fields": [stars]})
        provider = ProviderFactory.create(project=project, base_url=f"{engine.url}/v1")
        TeacherFactory.create(engine=provider, name="big", model="gpt-large")
        trajectory = make_trajectory()
        engine.script.pieces = ['{"score": 4, "reason": "good"}']
        grade_all(make_version("judge", settings={"model": "big"}, field="stars"))
        label = Label.objects.get()
        assert (label.said, label.value) == (4, 0.5)
        [call] = engine.calls
        assert (call.body["model"], call.headers["Authorization"]) == ("gpt-large", "Bearer sk-of-a-teacher")
        trajectory.refresh_from_db()
        assert trajectory.reward == 0.5

    def test_nonsense_is_tried_again_and_then_left_with_its_words(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory()
        engine.script.pieces = ["I like it!"]
        version = make_version("judge")
        grade_all(version)
        state, error = state_of(trajectory)
        assert state == GradingState.WAITING
        assert "nonsense: no JSON object: “I like it!”" in error
        assert Grading.objects.get().due_at > timezone.now() + timedelta(seconds=20)
        for _ in range(3):
            Grading.objects.update(due_at=timezone.now())
            assert grade_due(version.pk)
        assert state_of(trajectory)[0] == GradingState.FAILED
        assert len(engine.calls) == 4
        assert not Label.objects.exists()

    def test_one_that_never_answers_is_given_up_in_time(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory()
        engine.script.first_pause_s = 5
        grade_all(make_version("judge", settings={"timeout_s": 1}))
        assert "gave no answer in 1 s" in state_of(trajectory)[1]

    def test_no_engine_is_no_judgement(
        self, project: Project, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory()
        grade_all(make_version("judge"))
        assert "no policy yet" in state_of(trajectory)[1]

    def test_half_of_the_votes_may_fail(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        make_trajectory()
        engine.script.pieces, engine.script.failures = ['{"score": 1}'], [500]
        grade_all(make_version("judge", settings={"n_votes": 3, "temperature": 1.0}))
        assert Label.objects.get().text == "median of 2 votes (1, 1): "
        assert Grading.objects.get().n_calls == 3

    def test_the_days_budget_holds(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        for _ in range(4):
            make_trajectory()
        engine.script.pieces = ['{"score": 1}']
        settings = {"calls_per_day": 5, "n_votes": 2, "temperature": 1.0}
        grade_all(make_version("judge", settings=settings))
        assert (Label.objects.count(), len(engine.calls)) == (2, 4)
        waiting = Grading.objects.filter(state=GradingState.WAITING)
        assert {row.error for row in waiting} == {"today's budget of 5 calls is spent"}
        assert all(row.due_at > timezone.now() and row.n_tries == 0 for row in waiting)

    def test_a_dry_run_and_another_version_share_it(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory, caller: Caller
    ) -> None:
        for _ in range(3):
            make_trajectory()
        engine.script.pieces = ['{"score": 1}']
        first = make_version("judge", settings={"calls_per_day": 4})
        dry_run = start_dry_run(caller=caller, version=first, n_wanted=2)
        run_dry_run(dry_run.pk)
        draft = VersionDraft(settings={"calls_per_day": 4, "question": "Is it kind?"})
        grade_all(add_version(caller=caller, grader=first.grader, draft=draft))
        assert (Label.objects.count(), len(engine.calls)) == (2, 4)


class TestSteps:
    @pytest.fixture
    def conversation(self, make_trajectory: MakeTrajectory) -> list[Step]:
        """Two steps and a side call: the user complains about the first answer."""
        first = make_trajectory("wrong").steps.get()
        messages = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "wrong"},
            {"role": "user", "content": "No! I meant the other one."},
        ]
        second = StepFactory.create(trajectory=first.trajectory, parent=first, index=1, messages=messages, text="right")
        side = StepFactory.create(trajectory=first.trajectory, parent=first, index=2, side_call="title")
        return [first, second, side]

    def test_the_next_state_judges_a_step_and_leaves_a_hint(
        self, engine: FakeEngine, make_version: MakeVersion, conversation: list[Step]
    ) -> None:
        engine.script.pieces = ['{"score": -1, "hint": "the other one", "reason": "a correction"}']
        version = make_version("next_state")
        grade_all(version)
        grade = Label.objects.get(field="reward")
        assert (grade.step, grade.value, grade.source) == (conversation[0], -1, Source.NEXT_STATE)
        [hint] = Label.objects.hints()
        assert (hint.text, hint.step) == ("the other one", conversation[0])
        [call] = engine.calls
        assert "I meant the other one" in call.body["messages"][0]["content"]
        Grading.objects.update(state=GradingState.WAITING)
        go_on(version)
        assert (Label.objects.standing().count(), len(engine.calls)) == (2, 1)

    def test_a_rule_may_grade_each_step(self, make_version: MakeVersion, conversation: list[Step]) -> None:
        grade_all(make_version("exact", settings={"target": "step", "expected": "right"}))
        values = dict(Label.objects.values_list("step", "value"))
        assert values == {conversation[0].pk: -1, conversation[1].pk: 1}
        assert Trajectory.objects.get().reward == 0


class TestGroup:
    def test_the_tries_of_a_group_are_compared_in_one_question(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        tries = [make_trajectory(text, group="g") for text in ("a", "b")]
        alone = make_trajectory("c")
        engine.script.pieces = ['{"scores": [0.25, 1], "reason": "b is right"}']
        version = make_version("relative")
        line_up(version, [tries[0].pk, alone.pk])
        go_on(version)
        assert [Label.objects.get(trajectory=one).value for one in tries] == [-0.5, 1]
        assert len(engine.calls) == sum(Grading.objects.values_list("n_calls", flat=True)) == 1
        assert state_of(alone) == (GradingState.SKIPPED, "it belongs to no group of tries")
        assert state_of(tries[1])[0] == GradingState.DONE

    def test_it_waits_for_the_last_try(
        self, engine: FakeEngine, make_version: MakeVersion, make_trajectory: Any
    ) -> None:
        first, last = make_trajectory("a", group="g"), make_trajectory("b", group="g")
        Trajectory.objects.filter(pk=last.pk).update(state=TrajectoryState.OPEN, completed_at=None)
        version = make_version("relative")
        line_up(version, [first.pk])
        go_on(version)
        assert "still open" in state_of(first)[1]
        assert engine.calls == []


class TestOthers:
    def test_a_webhook_judges_and_a_value_out_of_range_is_refused(
        self, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        trajectory = make_trajectory()
        version = make_version("webhook", settings={"url": webhook.url})
        grade_all(version)
        assert Label.objects.get().value == 1
        webhook.content = b'{"value": 7}'
        other = make_trajectory()
        grade_all(version)
        assert state_of(other) == (GradingState.FAILED, "it said 7: reward takes a number from -1 to 1")
        assert state_of(trajectory)[0] == GradingState.DONE

    def test_a_rule_answers_a_yes_or_no(
        self, caller: Caller, project: Project, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        change_schema(
            caller=caller, project=project, definition={"fields": [{"name": "polite", "kind": "binary", "weight": 2}]}
        )
        make_trajectory("please")
        make_trajectory("now")
        grade_all(make_version("regex", settings={"pattern": "please"}, field="polite"))
        assert list(Label.objects.order_by("trajectory").values_list("said", flat=True)) == [True, False]

    @pytest.mark.parametrize(
        ("plugin", "state"),
        [
            (lambda subject, options: (options["worth"], subject["answer"]["content"]), GradingState.DONE),
            (lambda _subject, _options: None, GradingState.SKIPPED),
            (lambda _subject, _options: "good", GradingState.FAILED),
            (lambda _subject, _options: 1 / 0, GradingState.WAITING),
        ],
        ids=["grades", "says nothing", "says nonsense", "breaks"],
    )
    def test_an_installed_grader_judges(
        self,
        monkeypatch: pytest.MonkeyPatch,
        make_version: MakeVersion,
        make_trajectory: MakeTrajectory,
        plugin: Callable[..., Any],
        state: str,
    ) -> None:
        class Point:
            def load(self) -> Callable[..., Any]:
                return plugin

        monkeypatch.setattr(plugins, "list_plugins", lambda: {"mine": Point()})
        trajectory = make_trajectory("hi")
        grade_all(make_version("plugin", settings={"plugin": "mine", "options": {"worth": 0.25}}))
        assert state_of(trajectory)[0] == state
        assert list(Label.objects.values_list("value", "text")) == ([(0.25, "hi")] if state == "done" else [])

    def test_a_field_that_is_gone_ends_its_graders(
        self, caller: Caller, project: Project, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        fields = [{"name": "polite", "kind": "binary"}]
        change_schema(caller=caller, project=project, definition={"fields": fields})
        version = make_version("regex", settings={"pattern": "x"}, field="polite")
        change_schema(caller=caller, project=project, definition={})
        trajectory = make_trajectory()
        grade_all(version)
        state, error = state_of(trajectory)
        assert (state, "no field 'polite'" in error) == (GradingState.FAILED, True)

    def test_every_kind_has_words_and_settings(self) -> None:
        assert all(kind.words and kind.help and kind.settings for kind in kinds.KINDS.values())


class TestDryRun:
    def test_it_shows_what_would_be_said_beside_what_people_said(
        self, caller: Caller, mate: User, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        judged = [make_trajectory(text) for text in ("sorry", "sure", "sorry")]
        for trajectory, value in zip(judged, (-1, 1, 0.5), strict=True):
            add_label(caller=Caller(user=mate), trajectory=trajectory, value=value)
        for _ in range(5):
            make_trajectory("sure")
        version = make_version("regex", settings={"pattern": "sorry", "must_match": False}, tried=False)
        dry_run = start_dry_run(caller=caller, version=version, n_wanted=6)
        for _ in range(2):  # a message that comes twice
            run_dry_run(dry_run.pk)
        dry_run.refresh_from_db()
        assert (dry_run.state, len(dry_run.results)) == (WorkState.DONE, 6)
        assert (dry_run.agreement["n"], dry_run.agreement["n_same"]) == (3, 2)
        by_id = {result["trajectory"]: result for result in dry_run.results}
        assert (by_id[judged[0].pk]["reward"], by_id[judged[0].pk]["people"]) == (-1, -1)
        assert not Label.objects.filter(source=Source.RULE).exists()
        assert not Grading.objects.exists()

    def test_failures_are_shown_with_their_words(
        self, caller: Caller, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        make_trajectory("with \x00 inside")
        engine.script.pieces = ["no idea"]
        dry_run = start_dry_run(caller=caller, version=make_version("judge", tried=False))
        run_dry_run(dry_run.pk)
        dry_run.refresh_from_db()
        [result] = dry_run.results
        assert "nonsense" in result["problem"]
        assert (result["value"], dry_run.agreement) == (None, {})

    def test_without_a_sample_it_fails(self, caller: Caller, make_version: MakeVersion) -> None:
        version = make_version("regex", settings={"pattern": "x"}, tried=False)
        dry_run = start_dry_run(caller=caller, version=version)
        run_dry_run(dry_run.pk)
        assert "nothing could be tried" in DryRun.objects.get().error


class TestBackfill:
    def test_it_grades_what_is_there_and_tells_how_far_it_is(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
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
        assert end_backfills() == 1
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


def test_agreement_with_people_is_shown_for_what_was_graded(
    mate: User, owner: User, make_version: MakeVersion, make_trajectory: MakeTrajectory
) -> None:
    trajectories = [make_trajectory(text) for text in ("x", "y", "x")]
    version = make_version("regex", settings={"pattern": "x"})
    grade_all(version)
    for trajectory, value in zip(trajectories, (1, 1, 0.5), strict=True):
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=value)
    add_label(caller=Caller(user=owner), trajectory=trajectories[1], value=0.5)
    agreement = read_agreement(version)
    assert (agreement.n, agreement.n_same, agreement.kappa) == (3, 2, 0)
