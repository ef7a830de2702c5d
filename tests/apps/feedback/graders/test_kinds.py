"""Every kind of grader at work, each on what it judges; failures are tried again, budgets hold."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.feedback.graders import kinds, plugins
from apps.feedback.graders.models import Grading, GradingState
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.graders.services import VersionDraft, add_version, start_dry_run
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label, Source
from apps.feedback.rescoring import change_schema
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, go_on, grade_all, state_of
from tests.factories.registry import ProviderFactory, TeacherFactory
from tests.factories.trajectories import StepFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


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
        assert call.body["response_format"]["type"] == "json_schema"  # our own engines hold their model to the shape
        assert "hello" in call.body["messages"][0]["content"]
        assert Trajectory.objects.get() == trajectory
        assert Step.objects.count() == 1

    def test_a_provider_that_wants_to_be_left_alone_is(
        self, project: Project, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        webhook.status, webhook.headers = 429, {"Retry-After": "900"}
        provider = ProviderFactory.create(project=project, base_url=webhook.url.removesuffix("/grade"))
        TeacherFactory.create(engine=provider, name="big", model="gpt-large")
        make_trajectory()
        version = make_version("judge", settings={"model": "big"})
        line_up(version, [Trajectory.objects.get().pk])
        grade_due(version.pk)
        row = Grading.objects.get()
        assert row.state == GradingState.WAITING
        assert (row.due_at - timezone.now()).total_seconds() == pytest.approx(900, abs=20)

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
