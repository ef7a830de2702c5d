"""Rewarding a trajectory and its steps, undoing it, and keeping a trajectory out of training."""

import json
from typing import Any

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, User
from apps.feedback.models import Label, Source
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.feedback.rescoring import change_schema
from apps.feedback.services import Answer, add_label, add_labels
from apps.trajectories.models import Step, Trajectory
from tests.factories.feedback import LabelFactory

HTMX = {"HX-Request": "true"}


def toast_of(response: Any) -> dict[str, str]:
    toast: dict[str, str] = json.loads(response["HX-Trigger"])["toast"]
    return toast


def test_a_reviewer_rewards_the_trajectory(reviewer_browser: Client, trajectory: Trajectory) -> None:
    response = reviewer_browser.post(f"/p/shop/trajectories/{trajectory.id}/labels", {"value": "1", "text": "kind"})
    assert response["Location"] == f"/p/shop/trajectories/{trajectory.id}"
    label = Label.objects.get()
    assert (label.value, label.text, label.source) == (1.0, "kind", Source.HUMAN)
    trajectory.refresh_from_db()
    assert trajectory.reward == 1.0
    html = reviewer_browser.get(f"/p/shop/trajectories/{trajectory.id}").content.decode()
    assert "1, from one human label" in html
    assert "mate@example.org" in html


def test_htmx_gets_the_panel_and_an_undo(reviewer_browser: Client, trajectory: Trajectory) -> None:
    address = f"/p/shop/trajectories/{trajectory.id}/labels"
    response = reviewer_browser.post(address, {"value": "-1"}, headers=HTMX)
    html = response.content.decode()
    assert 'id="reward-panel"' in html
    assert "<html" not in html
    toast = toast_of(response)
    assert toast["text"] == "Trajectory rewarded −1.00"
    undone = reviewer_browser.post(toast["undo"], headers=HTMX)
    assert toast_of(undone)["text"] == "Undone"
    trajectory.refresh_from_db()
    assert trajectory.reward is None


def test_an_undo_brings_back_the_reward_before_and_taking_back_does_not(
    reviewer_browser: Client, trajectory: Trajectory, step: Step
) -> None:
    address = f"/p/shop/trajectories/{trajectory.id}/labels"
    for fields in ({}, {"step": step.id}):
        reviewer_browser.post(address, {**fields, "value": "-0.5", "text": "dull"}, headers=HTMX)
        toast = toast_of(reviewer_browser.post(address, {**fields, "value": "1"}, headers=HTMX))
        reviewer_browser.post(toast["undo"], headers=HTMX)
        standing = Label.objects.standing().get(step=step if fields else None)
        assert (standing.value, standing.text) == (-0.5, "dull")
        reviewer_browser.post(f"/p/shop/labels/{standing.pk}/take-back", headers=HTMX)
        assert not Label.objects.standing().exists()
    trajectory.refresh_from_db()
    assert trajectory.reward is None


def test_a_step_is_rewarded_alone(reviewer_browser: Client, trajectory: Trajectory, step: Step) -> None:
    address = f"/p/shop/trajectories/{trajectory.id}/labels"
    response = reviewer_browser.post(address, {"value": "0.5", "step": step.id}, headers=HTMX)
    html = response.content.decode()
    assert response["HX-Retarget"] == f"#foot-{step.id}"
    assert "hx-swap-oob" in html
    step.refresh_from_db()
    assert step.reward == 0.5


def test_the_answer_says_what_the_trajectory_counts(
    reviewer_browser: Client, owner: User, mate: User, trajectory: Trajectory, step: Step
) -> None:
    def reward(value: float, **fields: str) -> str:
        address = f"/p/shop/trajectories/{trajectory.id}/labels"
        return str(toast_of(reviewer_browser.post(address, {"value": value, **fields}, headers=HTMX))["text"])

    assert reward(0.5, step=step.id) == "Step 0 rewarded +0.50: the trajectory's reward is +0.50 now"
    assert reward(-1) == "Trajectory rewarded −1.00"
    assert reward(1, step=step.id) == "Step 0 rewarded +1.00: the trajectory's reward stays −1.00"
    add_label(caller=Caller(user=owner), trajectory=trajectory, value=0)
    assert reward(1) == "Trajectory rewarded +1.00: the trajectory's reward is +0.50 now"
    queue = create_queue(caller=Caller(user=owner), project=trajectory.project, settings={"name": "blind"})
    add_trajectories(caller=Caller(user=owner), queue=queue, ids=[trajectory.pk])
    take_review(caller=Caller(user=mate), queue=queue)
    assert reward(-1) == "Trajectory rewarded −1.00"  # what it counts would tell what others said


def test_a_stale_undo_is_refused_in_words(reviewer_browser: Client, trajectory: Trajectory) -> None:
    address = f"/p/shop/trajectories/{trajectory.id}/labels"
    undo = toast_of(reviewer_browser.post(address, {"value": "1"}, headers=HTMX))["undo"]
    reviewer_browser.post(address, {"value": "-1"}, headers=HTMX)
    response = reviewer_browser.post(undo, headers=HTMX)
    assert response.status_code == 409
    assert response["HX-Reswap"] == "none"
    assert "not current any more" in toast_of(response)["text"]


def test_nobody_undoes_anothers_reward(owner_browser: Client, trajectory: Trajectory) -> None:
    label = LabelFactory.create(trajectory=trajectory)
    assert owner_browser.post(f"/p/shop/labels/{label.id}/take-back").status_code == 404


@pytest.mark.parametrize("value", ["", "2", "-1.01", "nan", "inf", "good"])
def test_a_value_that_is_none_is_refused(value: str, reviewer_browser: Client, trajectory: Trajectory) -> None:
    response = reviewer_browser.post(f"/p/shop/trajectories/{trajectory.id}/labels", {"value": value}, headers=HTMX)
    assert response.status_code == 400
    assert "from −1 to 1" in toast_of(response)["text"]
    assert not Label.objects.exists()


def test_a_step_of_another_trajectory_is_refused(
    reviewer_browser: Client, trajectory: Trajectory, ready: list[Trajectory]
) -> None:
    foreign = ready[0].steps.get()
    response = reviewer_browser.post(f"/p/shop/trajectories/{trajectory.id}/labels", {"value": "1", "step": foreign.id})
    assert response.status_code == 404


def test_a_viewer_sees_the_buttons_and_whom_to_ask(
    viewer_browser: Client, owner_browser: Client, trajectory: Trajectory
) -> None:
    html = viewer_browser.get(f"/p/shop/trajectories/{trajectory.id}").content.decode()
    assert "You are viewer here. Ask owner@example.org" in html
    assert 'id="fine-value"' not in html


def test_a_trajectory_is_kept_out_and_let_in_again(reviewer_browser: Client, trajectory: Trajectory) -> None:
    address = f"/p/shop/trajectories/{trajectory.id}/exclusion"
    response = reviewer_browser.post(address, {"excluded": "1"}, headers=HTMX)
    assert 'aria-checked="true"' in response.content.decode()
    trajectory.refresh_from_db()
    assert trajectory.is_excluded
    reviewer_browser.post(address, {"excluded": "0"})
    trajectory.refresh_from_db()
    assert not trajectory.is_excluded


def test_answers_in_other_fields_and_end_users_are_shown(
    reviewer_browser: Client, trainer: User, mate: User, key: ApiKey, trajectory: Trajectory
) -> None:
    fields = [
        {"name": "stars", "kind": "scale", "low": 1, "high": 5, "weight": 3, "title": "How many stars?"},
        {"name": "was_polite", "kind": "binary"},
    ]
    change_schema(caller=Caller(user=trainer), project=trajectory.project, definition={"fields": fields})
    answers = [Answer(field="stars", value=4), Answer(field="was_polite", value=False)]
    add_labels(caller=Caller(user=mate), trajectory=trajectory, answers=answers)
    add_label(caller=Caller(key=key), trajectory=trajectory, value=1, source="end_user", end_user="ann")
    html = reviewer_browser.get(f"/p/shop/trajectories/{trajectory.id}").content.decode()
    for words in ("How many stars? 4", "was polite: No", ">ann<", "0.3 = (Reward 1 + How many stars? 0.5"):
        assert words in html
    assert "was_polite<" not in html
    change_schema(caller=Caller(user=trainer), project=trajectory.project, definition={"fields": fields[:1]})
    assert "was polite: No" in reviewer_browser.get(f"/p/shop/trajectories/{trajectory.id}").content.decode()
    assert 'id="judge-good" name="value" value="1" data-key="+" aria-pressed="false"' in html
