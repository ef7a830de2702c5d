"""Calls outside their conversation: found with the reason, put back, moved in or out; REST with the usual litany."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import new_id
from apps.feedback.services import add_label
from apps.trajectories import inbox
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.search.services import search
from apps.trajectories.taking_out import take_out_call
from apps.trajectories.unassigned import UnassignedCall
from tests.apps.feedback.queues.conftest import run_at_once
from tests.factories.accounts import AgentFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory, chat_response

pytestmark = pytest.mark.django_db

INBOX = "/api/v1/inbox"
IN_TOKENS = {
    "dialect": "generate",
    "chat_request": b'{"messages": []}',
    "chat_response": chat_response({"content": "hi"}),
}
Login = Callable[[User], APIClient]


@pytest.fixture
def poison(key: ApiKey) -> Exchange:
    """A call that the recorder cannot read."""
    call: Exchange = ExchangeFactory.create(key=key)
    Exchange.objects.filter(pk=call.pk).update(request=b"no json")
    fold_pending()
    call.refresh_from_db()
    return call


@pytest.fixture
def lonely(key: ApiKey) -> Exchange:
    """A call that failed before any conversation."""
    call: Exchange = ExchangeFactory.create(key=key, status=ExchangeStatus.ERROR, response=None, error="engine away")
    fold_pending()
    return call


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent, title="talk")


@pytest.fixture
def mates(client_of: Login, mate: User) -> APIClient:
    return client_of(mate)


def listed(client: APIClient, kind: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(INBOX, {"project": "shop", "kind": kind}).json()["items"]
    return items


def test_each_kind_says_why(
    mates: APIClient, poison: Exchange, lonely: Exchange, trajectory: Trajectory, agent: Agent
) -> None:
    step = StepFactory.create(trajectory=trajectory, side_call="title")
    StepFactory.create(trajectory=trajectory)
    (aside,) = listed(mates, "set_aside")
    assert (aside["id"], aside["agent"]) == (poison.pk, "Clerk")
    assert "UnreadableExchange" in aside["why"]
    (unassigned,) = listed(mates, "unassigned")
    assert (unassigned["id"], unassigned["status"]) == (lonely.pk, "error")
    assert "engine away" in unassigned["why"]
    (side,) = listed(mates, "side")
    assert (side["step_id"], side["trajectory_id"], side["title"]) == (step.pk, trajectory.pk, "talk")


def test_a_call_in_tokens_that_names_nothing_waits_too(mates: APIClient, key: ApiKey) -> None:
    call = ExchangeFactory.create(key=key, **IN_TOKENS)
    fold_pending()
    assert [(item["id"], "in tokens" in item["why"]) for item in listed(mates, "unassigned")] == [(call.pk, True)]


def test_it_pages(mates: APIClient, key: ApiKey) -> None:
    made = [ExchangeFactory.create(key=key, fold_error="x", folded_at="2026-11-01T00:00Z").pk for _ in range(3)]
    first = mates.get(INBOX, {"project": "shop", "limit": "2"}).json()
    assert [item["id"] for item in first["items"]] == made[:0:-1]
    rest = mates.get(INBOX, {"project": "shop", "limit": "2", "before": first["next_before"]}).json()
    assert [item["id"] for item in rest["items"]] == made[:1]


def test_what_is_mended_is_folded_when_it_is_put_back(mates: APIClient, poison: Exchange, key: ApiKey) -> None:
    again = mates.post(f"{INBOX}/{poison.pk}/retry")
    assert again.status_code == 204
    assert len(listed(mates, "set_aside")) == 1
    Exchange.objects.filter(pk=poison.pk).update(request=ExchangeFactory.build(key=key).request)
    assert mates.post(f"{INBOX}/{poison.pk}/retry").status_code == 204
    assert listed(mates, "set_aside") == []
    assert Step.objects.get().exchange_id == poison.pk
    assert mates.post(f"{INBOX}/{poison.pk}/retry").status_code == 409


def test_a_lonely_call_is_moved_into_a_trajectory(mates: APIClient, key: ApiKey, trajectory: Trajectory) -> None:
    call = ExchangeFactory.create(key=key, **IN_TOKENS)
    fold_pending()
    moved = mates.post(f"{INBOX}/{call.pk}/assign", {"trajectory": trajectory.pk})
    assert (moved.status_code, moved.json()["n_steps"]) == (200, 1)
    assert Step.objects.get().trajectory_id == trajectory.pk
    assert listed(mates, "unassigned") == []


def look_of(trajectory: Trajectory) -> dict[str, Any]:
    """Everything that a list shows of it."""
    return dict(Trajectory.objects.values().get(pk=trajectory.pk))


def move_in(client: APIClient, call: Exchange, trajectory: Trajectory) -> None:
    assert client.post(f"{INBOX}/{call.pk}/assign", {"trajectory": trajectory.pk}).status_code == 200


class TestMovingBack:
    def test_all_is_as_it_was(self, mates: APIClient, key: ApiKey, project: Project, trajectory: Trajectory) -> None:
        StepFactory.create(trajectory=trajectory, index=0, text="an earlier word")
        before = look_of(trajectory)
        call = ExchangeFactory.create(key=key, **IN_TOKENS)
        fold_pending()
        waiting = listed(mates, "unassigned")
        for _ in range(2):  # it can be moved in again, and back again
            move_in(mates, call, trajectory)
            [moved] = listed(mates, "moved_in")
            assert (moved["id"], moved["trajectory_id"], moved["title"]) == (call.pk, trajectory.pk, "talk")
            assert "mate@example.org moved it" in moved["why"]
            assert look_of(trajectory) != before
            assert mates.post(f"{INBOX}/{call.pk}/take-out").status_code == 204
            assert (look_of(trajectory), listed(mates, "unassigned"), listed(mates, "moved_in")) == (
                before,
                waiting,
                [],
            )
            assert Step.objects.count() == 1
        words = search(project=project, q="earlier", before=None, limit=5).items
        assert [row.pk for row in words] == [trajectory.pk]
        assert not search(project=project, q="hi", before=None, limit=5).items
        assert mates.post(f"{INBOX}/{call.pk}/take-out").status_code == 404

    def test_a_call_that_failed_leaves_no_mark(
        self, mates: APIClient, lonely: Exchange, trajectory: Trajectory
    ) -> None:
        before = look_of(trajectory)
        move_in(mates, lonely, trajectory)
        assert look_of(trajectory)["has_error"]
        assert mates.post(f"{INBOX}/{lonely.pk}/take-out").status_code == 204
        assert look_of(trajectory) == before
        assert [item["id"] for item in listed(mates, "unassigned")] == [lonely.pk]

    def test_what_was_set_aside_is_so_again_with_its_reason(
        self, mates: APIClient, key: ApiKey, poison: Exchange, trajectory: Trajectory
    ) -> None:
        waiting = listed(mates, "set_aside")
        Exchange.objects.filter(pk=poison.pk).update(request=ExchangeFactory.build(key=key).request)
        move_in(mates, poison, trajectory)
        assert listed(mates, "set_aside") == []
        assert mates.post(f"{INBOX}/{poison.pk}/take-out").status_code == 204
        assert listed(mates, "set_aside") == waiting
        assert not Step.objects.exists()

    @pytest.mark.parametrize("reason", ["calls came after", "something was said", "a snapshot holds"])
    def test_what_others_rely_on_stays(
        self, mates: APIClient, mate: User, key: ApiKey, project: Project, trajectory: Trajectory, reason: str
    ) -> None:
        call = ExchangeFactory.create(key=key, **IN_TOKENS)
        fold_pending()
        move_in(mates, call, trajectory)
        step, caller = Step.objects.get(), Caller(user=mate)
        if reason == "calls came after":
            StepFactory.create(trajectory=trajectory, index=1)
        elif reason == "something was said":
            add_label(caller=caller, trajectory=trajectory, step=step, value=1)
        else:
            dataset = create_dataset(project=project, caller=caller, name="d")
            add_ids_to_dataset(dataset=dataset, caller=caller, ids=[trajectory.pk])
            take_snapshot(dataset=dataset, caller=caller)
        before = look_of(trajectory)
        refused = mates.post(f"{INBOX}/{call.pk}/take-out")
        assert (refused.status_code, reason in refused.json()["detail"]) == (409, True)
        assert "move its step out of the conversation" in refused.json()["detail"]
        assert look_of(trajectory) == before
        assert Step.objects.filter(pk=step.pk).exists()

    def test_a_mark_that_another_call_made_stays(
        self, mates: APIClient, key: ApiKey, lonely: Exchange, trajectory: Trajectory
    ) -> None:
        move_in(mates, lonely, trajectory)
        late = lonely.ended_at + timedelta(seconds=5)
        failed = {"status": ExchangeStatus.ERROR, "response": None, "ended_at": late}
        ExchangeFactory.create(key=key, trajectory_id=trajectory.pk, **failed)
        fold_pending()
        assert mates.post(f"{INBOX}/{lonely.pk}/take-out").status_code == 204
        assert (look_of(trajectory)["has_error"], look_of(trajectory)["last_step_at"]) == (True, late)

    @pytest.mark.django_db(transaction=True)
    def test_of_two_at_once_one_is_told_that_it_is_done(self, mate: User, key: ApiKey, trajectory: Trajectory) -> None:
        call = ExchangeFactory.create(key=key, **IN_TOKENS)
        fold_pending()
        inbox.assign_call(caller=Caller(user=mate), exchange_id=call.pk, trajectory_id=trajectory.pk)

        def undo() -> None:
            take_out_call(caller=Caller(user=mate), exchange_id=call.pk)

        first, second = sorted(run_at_once(undo, undo), key=lambda given: given is not None)
        assert (first, type(second) in {Conflict, NotFound}) == (None, True)
        assert not Step.objects.exists()
        assert UnassignedCall.objects.get().pk == call.pk


def test_a_call_goes_to_its_own_agent_only(mate: User, lonely: Exchange, project: Project) -> None:
    other = TrajectoryFactory.create(agent=AgentFactory.create(project=project))
    with pytest.raises(InvalidInput, match="another agent's"):
        inbox.assign_call(caller=Caller(user=mate), exchange_id=lonely.pk, trajectory_id=other.pk)


def test_a_call_that_cannot_be_read_waits_on(mate: User, poison: Exchange, trajectory: Trajectory) -> None:
    with pytest.raises(Conflict, match="cannot be put there"):
        inbox.assign_call(caller=Caller(user=mate), exchange_id=poison.pk, trajectory_id=trajectory.pk)
    poison.refresh_from_db()
    assert poison.fold_error


def test_a_step_is_moved_out_and_in(mates: APIClient, trajectory: Trajectory) -> None:
    step = StepFactory.create(trajectory=trajectory)
    address = f"/api/v1/trajectories/{trajectory.pk}/steps/{step.pk}/side-call"
    assert mates.post(address, {"side": True}).json()["side_call"] == "other"
    assert mates.post(address, {"side": True}).json()["side_call"] == "other"
    assert mates.post(address, {"side": False}).json()["side_call"] == ""
    assert mates.post(address, {"side": "perhaps"}).json()["field"] == "side"
    missing = address.replace(step.pk, new_id("step"))
    assert mates.post(missing, {"side": True}).status_code == 404


def test_a_side_call_that_was_moved_in_is_called_the_same_when_it_is_moved_out(
    mates: APIClient, trajectory: Trajectory
) -> None:
    messages = [{"role": "system", "content": "You are a title generator."}, {"role": "user", "content": "hello"}]
    step = StepFactory.create(trajectory=trajectory, side_call="title", messages=messages)
    address = f"/api/v1/trajectories/{trajectory.pk}/steps/{step.pk}/side-call"
    assert mates.post(address, {"side": False}).json()["side_call"] == ""
    assert mates.post(address, {"side": True}).json()["side_call"] == "title"


@pytest.mark.parametrize("body", [{}, {"trajectory": ""}, {"trajectory": "x" * 50}, {"trajectory": "t", "why": 1}])
def test_it_refuses_a_bad_body(mates: APIClient, lonely: Exchange, body: dict[str, Any]) -> None:
    assert mates.post(f"{INBOX}/{lonely.pk}/assign", body).status_code == 400


def test_it_refuses_a_kind_that_is_none(mates: APIClient, agent: Agent) -> None:
    assert mates.get(INBOX, {"project": "shop", "kind": "lost"}).json()["field"] == "kind"


CHANGES = [
    ("/{call}/retry", {}),
    ("/{call}/assign", {"trajectory": "{trajectory}"}),
    ("/../trajectories/{trajectory}/steps/{step}/side-call", {"side": True}),
]


@pytest.mark.parametrize(("path", "body"), CHANGES)
def test_roles_and_teams_decide(
    path: str,
    body: dict[str, Any],
    lonely: Exchange,
    trajectory: Trajectory,
    client_of: Login,
    viewer: User,
    other_client: APIClient,
    anonymous_client: APIClient,
) -> None:
    step = StepFactory.create(trajectory=trajectory)
    address = INBOX + path.format(call=lonely.pk, trajectory=trajectory.pk, step=step.pk)
    address = address.replace("inbox/../", "")
    filled = {"trajectory": trajectory.pk} if "trajectory" in body else body
    assert anonymous_client.post(address, filled).status_code == 401
    assert other_client.post(address, filled).status_code == 404
    assert client_of(viewer).post(address, filled).status_code == 403
    assert client_of(viewer).get(address).status_code == 405


def test_the_list_is_the_teams_own(
    poison: Exchange, client_of: Login, viewer: User, other_client: APIClient, anonymous_client: APIClient
) -> None:
    assert client_of(viewer).get(INBOX, {"project": "shop"}).status_code == 200
    assert other_client.get(INBOX).json()["items"] == []
    assert other_client.get(INBOX, {"project": "shop"}).status_code == 404
    assert anonymous_client.get(INBOX).status_code == 401
    assert client_of(viewer).post(INBOX, {}).status_code == 405


@pytest.mark.parametrize("missing", [new_id("exch"), "exch_x", "%00"])
def test_a_missing_call_is_404(mates: APIClient, agent: Agent, missing: str) -> None:
    assert mates.post(f"{INBOX}/{missing}/retry").status_code == 404
    assert mates.post(f"{INBOX}/{missing}/assign", {"trajectory": new_id("traj")}).status_code == 404
