"""Two tries side by side: what both begin with stands once, whatever the ids of their calls are."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.console.queries.sides import Sides, show_one, show_pair
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.trajectories.models import Step, Trajectory
from tests.factories.trajectories import StepFactory

ASKED = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "where is it?"}]
Add = Callable[..., Trajectory]


def call(number: int, order: int) -> dict[str, Any]:
    """An answer that asks for an order; the id of the call is another in each try."""
    function = {"name": "find", "arguments": json.dumps({"order": order})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{number}", "function": function}]}


@pytest.fixture
def add_try(add_trajectory: Add) -> Callable[..., Trajectory]:
    """Return a function that adds a try: the question, a call, what the tool said, and an answer."""

    def add(number: int, *, found: str = "late", order: int = 7, text: str = "It is late.") -> Trajectory:
        asked = {"messages": ASKED, "answer": json.dumps(call(number, order)).encode()}
        row = add_trajectory(group="g", title=f"try {number}", step=asked)
        told = {"role": "tool", "tool_call_id": f"c{number}", "content": found}
        first = row.steps.get()
        StepFactory.create(trajectory=row, index=1, parent=first, shared_messages=2, messages=[told], text=text)
        return row

    return add


def told(shown: Sides) -> tuple[list[str], list[list[str]]]:
    """Return what stands once, and what each side says."""
    alone = [
        [message.preview for card in side.window.cards for message in (*card.new_messages, card.answer)]
        for side in shown.sides
    ]
    return [one.message.preview for one in shown.shared], alone


CALL = 'find({"order": 7})'


@pytest.mark.parametrize(
    ("other", "shared", "alone"),
    [
        ({}, ["be kind", "where is it?", CALL, "late", "It is late."], [[], []]),
        ({"text": "Soon."}, ["be kind", "where is it?", CALL, "late"], [["It is late."], ["Soon."]]),
        ({"found": "lost"}, ["be kind", "where is it?", CALL], [["late", "It is late."], ["lost", "It is late."]]),
        (
            {"order": 8},
            ["be kind", "where is it?"],
            [[CALL, "late", "It is late."], ['find({"order": 8})', "late", "It is late."]],
        ),
    ],
)
def test_what_both_begin_with_stands_once(
    add_try: Callable[..., Trajectory], owner: User, other: dict[str, Any], shared: list[str], alone: list[list[str]]
) -> None:
    left, right = add_try(1), add_try(2, **other)
    shown = show_pair(left, right, user=owner)
    assert told(shown) == (shared, alone)
    assert shown.is_unfolded == (alone == [[], []])


def test_tries_that_begin_apart_share_nothing(add_try: Callable[..., Trajectory], owner: User) -> None:
    left, right = add_try(1), add_try(2)
    Step.objects.filter(trajectory=right, index=0).update(tail_messages=b'[{"role":"user","content":"when?"}]')
    shared, (one, _) = told(show_pair(left, right, user=owner))
    assert (shared, len(one)) == ([], 5)


def test_a_difference_far_inside_a_long_text_is_one(add_try: Callable[..., Trajectory], owner: User) -> None:
    """What a page leaves out of a long text is compared too."""
    left, right = (add_try(number, found=f"{'x' * 20_000}{number}{'x' * 20_000}") for number in (1, 2))
    shared, alone = told(show_pair(left, right, user=owner))
    assert (len(shared), [len(side) for side in alone]) == (3, [2, 2])


def test_side_calls_stay_where_they_are(add_try: Callable[..., Trajectory], owner: User) -> None:
    left, right = add_try(1), add_try(2, text="Soon.")
    StepFactory.create(trajectory=left, index=2, messages=ASKED, text="A title", side_call="title")
    shared, (one, other) = told(show_pair(left, right, user=owner))
    assert (len(shared), one[-1], other) == (4, "A title", ["Soon."])


def test_one_trajectory_is_whole(add_try: Callable[..., Trajectory], owner: User) -> None:
    shared, [alone] = told(show_one(add_try(1), user=owner))
    assert (shared, len(alone)) == ([], 5)


def test_the_desk_folds_it(
    add_try: Callable[..., Trajectory], project: Project, trainer: User, reviewer_browser: Client
) -> None:
    queue = create_queue(caller=Caller(user=trainer), project=project, settings={"name": "Two", "mode": "pairs"})
    rows = [add_try(1), add_try(2, text="Soon.")]
    add_trajectories(caller=Caller(user=trainer), queue=queue, ids=[row.pk for row in rows])
    html = reviewer_browser.get(f"/p/shop/review/{queue.pk}/work").content.decode()
    shared, *sides = html.split('<section class="stack" aria-labelledby="side-')
    assert "Both begin with 4 messages alike" in shared
    for role, n in (("system", 1), ("user", 1), ("tool", 1), ("assistant", 3)):
        assert html.count(f'data-role="{role}"') == n
        assert shared.count(f'data-role="{role}"') == 1
    assert sorted("Soon." in side for side in sides) == [False, True]
