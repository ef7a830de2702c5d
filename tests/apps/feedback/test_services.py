"""Labels: append-only, superseding, undone, repeated, and what the reward is after each."""

import math
import threading

import pytest
from django.db import connection

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.bulk import ACTIONS
from apps.feedback.models import Label, Source
from apps.feedback.rescoring import change_schema
from apps.feedback.rewards import score_labels
from apps.feedback.services import Answer, add_label, add_labels, find_label, take_back_label
from apps.trajectories.bulk.running import run_job
from apps.trajectories.models import Trajectory
from tests.factories.trajectories import StepFactory, TrajectoryFactory


@pytest.fixture
def trajectory(key: ApiKey) -> Trajectory:
    return TrajectoryFactory.create(agent=key.agent)


@pytest.fixture
def agent_caller(key: ApiKey) -> Caller:
    return Caller(key=key)


@pytest.mark.django_db
class TestAdd:
    def test_the_reward_follows(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        label = add_label(caller=agent_caller, trajectory=trajectory, value=0.5)
        assert (label.source, label.field, label.value) == (Source.ENVIRONMENT, "reward", 0.5)
        assert trajectory.reward == 0.5
        assert Trajectory.objects.get().reward == 0.5

    def test_a_person_outranks_the_environment(
        self, trajectory: Trajectory, agent_caller: Caller, mate: User, owner: User
    ) -> None:
        add_label(caller=agent_caller, trajectory=trajectory, value=1)
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=-1)
        assert trajectory.reward == -1
        add_label(caller=Caller(user=owner), trajectory=trajectory, value=0)
        assert trajectory.reward == -0.5

    def test_a_change_of_mind_supersedes(self, trajectory: Trajectory, mate: User) -> None:
        first = add_label(caller=Caller(user=mate), trajectory=trajectory, value=1)
        second = add_label(caller=Caller(user=mate), trajectory=trajectory, value=-1)
        first.refresh_from_db()
        assert first.superseded_by == second
        assert first.value == 1
        assert trajectory.reward == -1

    def test_sources_of_one_key_stand_side_by_side(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        add_label(caller=agent_caller, trajectory=trajectory, value=1, source="judge")
        add_label(caller=agent_caller, trajectory=trajectory, value=0, source="environment")
        assert Label.objects.current().count() == 2
        assert trajectory.reward == 0

    def test_a_step_has_its_own_reward(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        one, other = StepFactory.create(trajectory=trajectory), StepFactory.create(trajectory=trajectory)
        add_label(caller=agent_caller, trajectory=trajectory, step=one, value=1)
        one.refresh_from_db()
        other.refresh_from_db()
        assert (one.reward, other.reward, trajectory.reward) == (1, None, 1)

    def test_a_comment_is_no_reward(self, trajectory: Trajectory, mate: User) -> None:
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=None, text="nice", field="comment")
        assert trajectory.reward is None

    @pytest.mark.parametrize("value", [1.01, -1.5, math.nan, math.inf])
    def test_it_refuses_values_out_of_range(self, trajectory: Trajectory, agent_caller: Caller, value: float) -> None:
        with pytest.raises(InvalidInput):
            add_label(caller=agent_caller, trajectory=trajectory, value=value)
        assert not Label.objects.exists()

    @pytest.mark.parametrize(
        "given",
        [
            {"value": None},
            {"value": None, "text": "why"},
            {"value": 1.0, "field": ""},
            {"value": 1.0, "field": "f" * 61},
            {"value": 1.0, "text": "x" * 20_001},
            {"value": 1.0, "text": "\x00"},
            {"value": 1.0, "text": "\ud800"},
            {"value": 1.0, "source": "oracle"},
            {"value": 1.0, "source": "human"},
        ],
    )
    def test_it_refuses_what_makes_no_sense(
        self, trajectory: Trajectory, agent_caller: Caller, given: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidInput):
            add_label(caller=agent_caller, trajectory=trajectory, **given)  # type: ignore[arg-type]

    def test_a_person_speaks_as_a_human_only(self, trajectory: Trajectory, mate: User) -> None:
        with pytest.raises(InvalidInput, match="human"):
            add_label(caller=Caller(user=mate), trajectory=trajectory, value=1, source="environment")

    def test_viewers_strangers_and_other_keys_are_refused(
        self, trajectory: Trajectory, viewer: User, stranger: User, other_key: ApiKey
    ) -> None:
        with pytest.raises(Forbidden):
            add_label(caller=Caller(user=viewer), trajectory=trajectory, value=1)
        for caller in (Caller(user=stranger), Caller(key=other_key)):
            with pytest.raises(NotFound):
                add_label(caller=caller, trajectory=trajectory, value=1)

    def test_a_step_of_another_trajectory_is_refused(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        with pytest.raises(NotFound):
            add_label(caller=agent_caller, trajectory=trajectory, step=StepFactory.create(), value=1)


STARS = {"name": "stars", "kind": "scale", "low": 1, "high": 5}


@pytest.mark.django_db
class TestFields:
    @pytest.fixture(autouse=True)
    def schema(self, trajectory: Trajectory, trainer: User) -> None:
        change_schema(caller=Caller(user=trainer), project=trajectory.project, definition={"fields": [STARS]})

    def test_an_answer_is_kept_as_it_was_said(self, trajectory: Trajectory, mate: User) -> None:
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, field="stars", value=4)
        assert (label.said, label.value, trajectory.reward) == (4, 0.5, 0.5)
        assert label.schema is not None
        assert label.schema.number == 1

    def test_several_answers_are_one_change(self, trajectory: Trajectory, mate: User) -> None:
        caller = Caller(user=mate)
        answers = [Answer(field="stars", value=5), Answer(value=0), Answer(field="comment", text="so-so")]
        add_labels(caller=caller, trajectory=trajectory, answers=answers)
        assert trajectory.reward == 0.5
        with pytest.raises(InvalidInput, match="whole number"):
            add_labels(
                caller=caller, trajectory=trajectory, answers=[Answer(value=1), Answer(field="stars", value=1.5)]
            )
        assert Label.objects.count() == 3

    def test_comments_stand_side_by_side_until_one_is_replaced(self, trajectory: Trajectory, mate: User) -> None:
        caller = Caller(user=mate)
        one, _ = (add_label(caller=caller, trajectory=trajectory, field="comment", value=None, text=t) for t in "ab")
        assert Label.objects.standing().count() == 2
        edited = add_label(caller=caller, trajectory=trajectory, field="comment", value=None, text="c", replaces=one)
        one.refresh_from_db()
        assert one.superseded_by == edited
        with pytest.raises(Conflict, match="not current"):
            add_label(caller=caller, trajectory=trajectory, field="comment", value=None, text="d", replaces=one)

    def test_nobody_replaces_anothers_label(self, trajectory: Trajectory, mate: User, owner: User) -> None:
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, value=1)
        with pytest.raises(InvalidInput, match="your own"):
            add_label(caller=Caller(user=owner), trajectory=trajectory, value=0, replaces=label)

    def test_a_span_lies_in_the_words_of_its_step(self, trajectory: Trajectory, mate: User) -> None:
        step = StepFactory.create(trajectory=trajectory, text="hi \N{WAVING HAND SIGN}!")
        caller = Caller(user=mate)
        label = add_label(caller=caller, trajectory=trajectory, step=step, span=(3, 5), value=-1)
        assert label.span == (3, 5)
        other = add_label(caller=caller, trajectory=trajectory, step=step, span=(0, 2), value=0)
        assert Label.objects.standing().count() == 2
        step.refresh_from_db()
        assert (step.reward, other.superseded_by) == (-0.5, None)
        for span in ((0, 6), (2, 2), (-1, 2)):
            with pytest.raises(InvalidInput, match="words have 5 characters"):
                add_label(caller=caller, trajectory=trajectory, step=step, span=span, value=0)
        with pytest.raises(InvalidInput, match="name the step"):
            add_label(caller=caller, trajectory=trajectory, span=(0, 1), value=0)

    def test_each_end_user_has_a_voice(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        for name, value in (("ann", 1), ("bob", 0), ("ann", -1)):
            add_label(caller=agent_caller, trajectory=trajectory, value=value, source="end_user", end_user=name)
        assert trajectory.reward == -0.5

    def test_a_new_schema_makes_rewards_anew(self, trajectory: Trajectory, mate: User, trainer: User) -> None:
        step = StepFactory.create(trajectory=trajectory)
        for target in (None, step):
            add_label(caller=Caller(user=mate), trajectory=trajectory, step=target, field="stars", value=5)
        kept = TrajectoryFactory.create(agent=trajectory.agent)
        add_label(caller=Caller(user=mate), trajectory=kept, value=1)
        definition = {"fields": [{**STARS, "high_reward": 0.5}]}
        _, job = change_schema(caller=Caller(user=trainer), project=trajectory.project, definition=definition)
        run_job(job.pk, actions=ACTIONS)
        job.refresh_from_db()
        trajectory.refresh_from_db()
        step.refresh_from_db()
        assert (trajectory.reward, step.reward) == (0.5, 0.5)
        assert Trajectory.objects.get(pk=kept.pk).reward == 1
        assert (job.state, job.n_total, job.n_done) == ("done", 2, 2)

    def test_reviewers_make_no_schema(self, trajectory: Trajectory, mate: User, stranger: User) -> None:
        with pytest.raises(Forbidden):
            change_schema(caller=Caller(user=mate), project=trajectory.project, definition={})
        with pytest.raises(NotFound):
            change_schema(caller=Caller(user=stranger), project=trajectory.project, definition={})


@pytest.mark.django_db
class TestIdempotency:
    def test_the_same_request_twice_is_one_label(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        first, second = (
            add_label(caller=agent_caller, trajectory=trajectory, value=1, idempotency_key="k") for _ in range(2)
        )
        assert first == second
        assert Label.objects.count() == 1

    def test_the_same_key_with_another_body_is_a_conflict(self, trajectory: Trajectory, agent_caller: Caller) -> None:
        add_label(caller=agent_caller, trajectory=trajectory, value=1, idempotency_key="k")
        other = TrajectoryFactory.create(agent=trajectory.agent)
        for target, value in ((trajectory, 0), (other, 1)):
            with pytest.raises(Conflict):
                add_label(caller=agent_caller, trajectory=target, value=value, idempotency_key="k")
        assert Label.objects.count() == 1

    def test_projects_do_not_share_idempotency_keys(
        self, trajectory: Trajectory, agent_caller: Caller, other_key: ApiKey
    ) -> None:
        add_label(caller=agent_caller, trajectory=trajectory, value=1, idempotency_key="k")
        theirs = TrajectoryFactory.create(agent=other_key.agent)
        add_label(caller=Caller(key=other_key), trajectory=theirs, value=0, idempotency_key="k")
        assert Label.objects.count() == 2


@pytest.mark.django_db
class TestTakeBack:
    def test_it_is_a_label_too(self, trajectory: Trajectory, mate: User) -> None:
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, value=1)
        undo = take_back_label(caller=Caller(user=mate), label=label)
        label.refresh_from_db()
        assert (undo.value, label.superseded_by) == (None, undo)
        assert Trajectory.objects.get().reward is None

    def test_what_was_outranked_counts_again(self, trajectory: Trajectory, agent_caller: Caller, mate: User) -> None:
        add_label(caller=agent_caller, trajectory=trajectory, value=1)
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, value=-1)
        take_back_label(caller=Caller(user=mate), label=label)
        assert Trajectory.objects.get().reward == 1

    def test_a_stale_undo_is_a_conflict(self, trajectory: Trajectory, mate: User) -> None:
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, value=1)
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=0)
        with pytest.raises(Conflict, match="not current"):
            take_back_label(caller=Caller(user=mate), label=label)

    def test_an_undo_cannot_be_undone(self, trajectory: Trajectory, mate: User) -> None:
        label = add_label(caller=Caller(user=mate), trajectory=trajectory, value=1)
        undo = take_back_label(caller=Caller(user=mate), label=label)
        with pytest.raises(Conflict, match="undo itself"):
            take_back_label(caller=Caller(user=mate), label=undo)

    def test_others_labels_need_a_trainer(
        self, trajectory: Trajectory, mate: User, trainer: User, agent_caller: Caller
    ) -> None:
        label = add_label(caller=agent_caller, trajectory=trajectory, value=1)
        with pytest.raises(Forbidden):
            take_back_label(caller=Caller(user=mate), label=label)
        take_back_label(caller=Caller(user=trainer), label=label)
        assert Trajectory.objects.get().reward is None

    def test_after_many_undos_a_new_label_still_works(self, trajectory: Trajectory, mate: User, owner: User) -> None:
        for person in (mate, owner):
            label = add_label(caller=Caller(user=person), trajectory=trajectory, value=1)
            take_back_label(caller=Caller(user=owner), label=label)
        add_label(caller=Caller(user=owner), trajectory=trajectory, value=0.5)
        assert trajectory.reward == 0.5

    def test_strangers_find_no_label(self, trajectory: Trajectory, agent_caller: Caller, stranger: User) -> None:
        label = add_label(caller=agent_caller, trajectory=trajectory, value=1)
        with pytest.raises(NotFound):
            find_label(caller=Caller(user=stranger), label_id=label.id)


@pytest.mark.django_db(transaction=True)
def test_labels_given_at_the_same_moment_all_count(trajectory: Trajectory, agent_caller: Caller) -> None:
    """Eight writers, one trajectory: no reward is computed from half of the labels, and one author has one voice."""
    barrier = threading.Barrier(8)
    errors: list[Exception] = []

    def give(number: int) -> None:
        try:
            barrier.wait(timeout=10)
            source = ("environment", "judge", "rule", "end_user")[number % 4]
            target = Trajectory.objects.get(pk=trajectory.pk)
            add_label(caller=agent_caller, trajectory=target, value=number / 10, source=source, idempotency_key="")
        except Exception as error:  # noqa: BLE001 (shown below)
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=give, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert Label.objects.count() == 8
    assert Label.objects.current().count() == 4
    assert Trajectory.objects.get().reward == score_labels(trajectory=trajectory).reward
