"""Corrections, comparisons and rankings: append-only, superseding, undone, and what a trainer reads of them."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.models import Label
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.feedback.preferences.pairs import list_corrections, list_pairs, read_pair
from apps.feedback.preferences.services import (
    add_comparison,
    add_correction,
    add_ranking,
    take_back_preference,
)
from apps.feedback.preferences.sides import Side, answer_of
from apps.feedback.rescoring import change_schema
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def trajectory(key: ApiKey) -> Trajectory:
    return TrajectoryFactory.create(agent=key.agent)


@pytest.fixture
def step(trajectory: Trajectory) -> Step:
    return StepFactory.create(trajectory=trajectory)


@pytest.fixture
def caller(mate: User) -> Caller:
    return Caller(user=mate)


@pytest.fixture
def places(trajectory: Trajectory, trainer: User) -> list[list[Trajectory]]:
    """Four trajectories, two of them as good, in a project that ranks."""
    fields = [{"name": "order", "kind": "ranking"}]
    change_schema(caller=Caller(user=trainer), project=trajectory.project, definition={"fields": fields})
    others = [TrajectoryFactory.create(agent=trajectory.agent) for _ in range(3)]
    return [[trajectory], others[:2], others[2:]]


class TestCorrection:
    def test_it_is_an_answer_to_imitate_and_a_pair(self, step: Step, caller: Caller) -> None:
        row = add_correction(caller=caller, step=step, message="hello there")
        project = step.trajectory.project
        assert list(list_corrections(project)) == list(list_pairs(project)) == [row]
        pair = read_pair(row)
        assert pair.messages == [{"role": "user", "content": "hello"}]
        assert (pair.chosen.message["content"], pair.chosen.step) == ("hello there", None)
        assert (pair.rejected.message["content"], pair.rejected.step) == ("hi", step)

    def test_tool_calls_can_be_corrected(self, step: Step, caller: Caller) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        row = add_correction(caller=caller, step=step, message={"content": None, "tool_calls": [call]})
        assert row.chosen_message == {"role": "assistant", "content": None, "tool_calls": [call]}

    def test_a_second_thought_supersedes_and_an_undo_empties_the_list(self, step: Step, caller: Caller) -> None:
        first, second = (add_correction(caller=caller, step=step, message=words) for words in ("one", "two"))
        assert list(list_corrections(step.trajectory.project)) == [second]
        with pytest.raises(Conflict, match="not current"):
            take_back_preference(caller=caller, preference=first)
        undo = take_back_preference(caller=caller, preference=second)
        assert not list_corrections(step.trajectory.project)
        with pytest.raises(Conflict, match="undo itself"):
            take_back_preference(caller=caller, preference=undo)
        assert Preference.objects.count() == 3

    def test_two_people_correct_side_by_side(self, step: Step, caller: Caller, owner: User) -> None:
        add_correction(caller=caller, step=step, message="one")
        add_correction(caller=Caller(user=owner), step=step, message="two")
        assert list_corrections(step.trajectory.project).count() == 2

    @pytest.mark.parametrize(
        "message",
        [
            "hi",
            "  ",
            None,
            {},
            {"content": ["x"]},
            {"content": "x", "role": "user"},
            {"content": "x", "name": "y"},
            {"content": "x", "tool_calls": "x"},
            {"content": "x", "tool_calls": 0},
            {"content": "x", "tool_calls": ""},
            {"content": "x", "tool_calls": {}},
            {"tool_calls": [{"id": 1, "function": {"name": "look", "arguments": ""}}]},
            {"tool_calls": [{"id": None, "function": {"name": "look", "arguments": ""}}]},
            {"tool_calls": [{"type": "custom", "function": {"name": "look", "arguments": ""}}]},
            {"tool_calls": [{"type": [], "function": {"name": "look", "arguments": ""}}]},
            {"tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
            "\x00",
        ],
    )
    def test_it_refuses_what_is_no_better_answer(self, step: Step, caller: Caller, message: Any) -> None:
        with pytest.raises(InvalidInput):
            add_correction(caller=caller, step=step, message=message)
        assert not Preference.objects.exists()

    def test_an_idempotency_key_makes_one(self, step: Step, caller: Caller) -> None:
        first, again = (add_correction(caller=caller, step=step, message="one", idempotency_key="k") for _ in range(2))
        assert first == again
        with pytest.raises(Conflict, match="idempotency"):
            add_correction(caller=caller, step=step, message="two", idempotency_key="k")

    def test_who_may(self, step: Step, viewer: User, stranger: User, other_key: ApiKey) -> None:
        with pytest.raises(Forbidden):
            add_correction(caller=Caller(user=viewer), step=step, message="one")
        for caller in (Caller(user=stranger), Caller(key=other_key)):
            with pytest.raises(NotFound):
                add_correction(caller=caller, step=step, message="one")


class TestComparison:
    def test_answers_to_one_prompt_make_a_pair(self, step: Step, caller: Caller) -> None:
        other = StepFactory.create(trajectory=TrajectoryFactory.create(agent=step.trajectory.agent), text="hey")
        row = add_comparison(caller=caller, chosen=Side(step=other), rejected=Side(step=step))
        pair = read_pair(list_pairs(step.trajectory.project).get())
        assert (pair.preference, pair.chosen.step, pair.rejected.step) == (row, other, step)

    def test_a_change_of_mind_supersedes_in_either_order(self, step: Step, caller: Caller) -> None:
        message = {"role": "assistant", "content": "hey"}
        add_comparison(caller=caller, chosen=Side(message=message), rejected=Side(step=step))
        turned = add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(message=message))
        assert list(list_pairs(step.trajectory.project)) == [turned]
        add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(message=message), is_tie=True)
        assert not list_pairs(step.trajectory.project)

    def test_whole_trajectories_are_compared_and_make_no_pair_of_answers(
        self, trajectory: Trajectory, caller: Caller
    ) -> None:
        other = TrajectoryFactory.create(agent=trajectory.agent)
        add_comparison(caller=caller, chosen=Side(trajectory=trajectory), rejected=Side(trajectory=other))
        assert Preference.objects.standing().count() == 1
        assert not list_pairs(trajectory.project)

    def test_it_refuses_what_cannot_be_compared(self, step: Step, caller: Caller) -> None:
        elsewhere = StepFactory.create(trajectory=step.trajectory, messages=[{"role": "user", "content": "bye"}])
        message = Side(message={"role": "assistant", "content": "hey"})
        refused = [
            (Side(step=step), Side(step=step), "both sides are the same"),
            (Side(step=step), Side(step=elsewhere), "same prompt"),
            (
                Side(step=step),
                Side(message={"role": "assistant", "content": spoken_text(answer_of(step))}),
                "say the same",
            ),
            (Side(step=step), Side(trajectory=step.trajectory), "answers with answers"),
            (message, Side(message={"role": "assistant", "content": "ho"}), "tells the prompt"),
        ]
        for chosen, rejected, reason in refused:
            with pytest.raises(InvalidInput, match=reason):
                add_comparison(caller=caller, chosen=chosen, rejected=rejected)

    def test_another_teams_side_is_refused(self, step: Step, caller: Caller) -> None:
        foreign = StepFactory.create(text="hey")
        with pytest.raises(NotFound):
            add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=foreign))


class TestRanking:
    def test_each_has_a_place_and_each_two_are_a_pair(self, places: list[list[Trajectory]], caller: Caller) -> None:
        ranking = add_ranking(caller=caller, field="order", places=places)
        assert len(ranking.pairs) == 5
        assert {pair.ranking for pair in ranking.pairs} == {ranking.id}
        assert {pair.kind for pair in ranking.pairs} == {PreferenceKind.RANKING}
        flat = [trajectory for place in places for trajectory in place]
        assert [trajectory.reward for trajectory in flat] == pytest.approx([1, 1 / 3, 1 / 3, -1])

    def test_a_new_order_supersedes(self, places: list[list[Trajectory]], caller: Caller) -> None:
        add_ranking(caller=caller, field="order", places=places)
        add_ranking(caller=caller, field="order", places=places[::-1])
        assert Label.objects.standing().count() == 4
        assert Preference.objects.standing().filter(rejected_trajectory=places[0][0]).count() == 3
        assert Preference.objects.standing().count() == 5

    def test_it_refuses_what_is_no_ranking(self, places: list[list[Trajectory]], caller: Caller) -> None:
        for field, ranked, reason in (
            ("reward", places, "reward is no ranking"),
            ("nothing", places, "no field 'nothing'"),
            ("order", places[:1], "rank 2 to"),
            ("order", [*places, places[0]], "has one place"),
        ):
            with pytest.raises(InvalidInput, match=reason):
                add_ranking(caller=caller, field=field, places=ranked)
        with pytest.raises(NotFound):
            add_ranking(caller=caller, field="order", places=[*places, [TrajectoryFactory.create()]])
        assert not Label.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_same_two_may_be_compared_either_way_at_the_same_moment(
    trajectory: Trajectory, mate: User, trainer: User
) -> None:
    sides = [Side(trajectory=trajectory), Side(trajectory=TrajectoryFactory.create(agent=trajectory.agent))]
    barrier = Barrier(2)

    def compare(user: User, chosen: Side, rejected: Side) -> None:
        try:
            for _ in range(5):
                barrier.wait(timeout=20)
                add_comparison(caller=Caller(user=user), chosen=chosen, rejected=rejected)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compare, (mate, trainer), sides, sides[::-1]))
    assert Preference.objects.standing().count() == 2
