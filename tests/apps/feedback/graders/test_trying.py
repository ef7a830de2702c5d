"""Dry runs, and how far a grader agrees with people."""

import json

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.errors import Conflict
from apps.feedback.graders.models import DryRun, Grading, WorkState
from apps.feedback.graders.people import read_agreement
from apps.feedback.graders.services import start_dry_run, switch_on
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label, Source
from apps.feedback.services import add_label
from apps.trajectories.models import Step, Trajectory
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, grade_all
from tests.factories.trajectories import StepFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db


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
        assert [by_id[row.pk]["people_said"] for row in judged] == [[-1], [1], [0.5]]
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
        assert (dry_run.state, dry_run.error[:59]) == (
            WorkState.FAILED,
            "none of 1 could be graded, each: the judge answered nonsens",
        )

    def test_what_graded_nothing_is_not_tried(
        self, caller: Caller, webhook: FakeWebhook, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        for _ in range(3):
            make_trajectory()
        version = make_version("webhook", settings={"url": webhook.url}, tried=False)
        webhook.status = 500
        run_dry_run(start_dry_run(caller=caller, version=version).pk)
        assert DryRun.objects.get().error == "none of 3 could be graded, each: the webhook answered 500"
        with pytest.raises(Conflict, match="first: a dry run shows"):
            switch_on(caller=caller, version=version)
        webhook.status = 200
        run_dry_run(start_dry_run(caller=caller, version=version).pk)
        assert switch_on(caller=caller, version=version).live == version

    def test_a_next_state_judge_is_tried_where_something_came_next(
        self, caller: Caller, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        engine.script.pieces = ['{"score": 1, "hint": "", "reason": "thanks"}']
        talk = make_trajectory("talk")
        version = make_version("next_state", tried=False)
        run_dry_run(start_dry_run(caller=caller, version=version).pk)
        assert (DryRun.objects.get().state, "second step" in DryRun.objects.get().error) == (WorkState.FAILED, True)
        first = talk.steps.get()
        StepFactory.create(trajectory=talk, index=1, parent=first, messages=[{"role": "user", "content": "ok"}])
        Trajectory.objects.filter(pk=talk.pk).update(n_steps=2)
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        Step.objects.filter(pk=first.pk).update(answer=json.dumps(said).encode())
        for _ in range(3):  # newer ones, of one step
            make_trajectory()
        run_dry_run(start_dry_run(caller=caller, version=version, n_wanted=1).pk)
        newest = DryRun.objects.order_by("-pk")[0]
        assert newest.state == WorkState.DONE
        assert {one["trajectory"] for one in newest.results} == {talk.pk}
        assert newest.results[0]["answer"] == 'calls look({"at": "sky"})'

    def test_without_a_sample_it_fails(self, caller: Caller, make_version: MakeVersion) -> None:
        version = make_version("regex", settings={"pattern": "x"}, tried=False)
        dry_run = start_dry_run(caller=caller, version=version)
        run_dry_run(dry_run.pk)
        assert "nothing could be tried" in DryRun.objects.get().error

    def test_a_judge_of_groups_is_tried_on_tries_of_groups_alone(
        self, caller: Caller, engine: FakeEngine, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        engine.script.pieces = ['{"scores": [0.25, 1], "reason": "b is right"}']
        make_trajectory("alone")
        version = make_version("relative", tried=False)
        run_dry_run(start_dry_run(caller=caller, version=version).pk)
        assert (DryRun.objects.get().state, "one of a group" in DryRun.objects.get().error) == (WorkState.FAILED, True)
        with pytest.raises(Conflict, match="first: a dry run shows"):
            switch_on(caller=caller, version=version)
        tries = [make_trajectory(text, group="g") for text in ("a", "b")]
        for _ in range(3):
            make_trajectory("alone")
        dry_run = start_dry_run(caller=caller, version=version, n_wanted=2)
        run_dry_run(dry_run.pk)
        dry_run.refresh_from_db()
        assert {one["trajectory"]: one["reward"] for one in dry_run.results} == {tries[0].pk: -0.5, tries[1].pk: 1}

    def test_what_says_nothing_is_nothing_to_try_it_on(
        self, caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory
    ) -> None:
        make_trajectory().steps.update(side_call="title")
        version = make_version("regex", settings={"pattern": "x"}, tried=False)
        run_dry_run(start_dry_run(caller=caller, version=version).pk)
        assert DryRun.objects.get().state == WorkState.FAILED
        assert "has an answer" in DryRun.objects.get().error


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
