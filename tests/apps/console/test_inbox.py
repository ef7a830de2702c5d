"""The inbox's pages: reasons, the raw call, and the ways in and out."""

import pytest
from django.test import Client

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.apps.trajectories.test_inbox import IN_TOKENS
from tests.factories.accounts import ProjectFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory


@pytest.fixture
def poison(key: ApiKey) -> Exchange:
    call: Exchange = ExchangeFactory.create(key=key)
    Exchange.objects.filter(pk=call.pk).update(request=b"<script>alert(1)</script>")
    fold_pending()
    return call


def test_a_call_that_was_set_aside_is_shown_raw_and_put_back(reviewer_browser: Client, poison: Exchange) -> None:
    html = reviewer_browser.get("/p/shop/inbox").content.decode()
    assert "UnreadableExchange" in html
    raw = reviewer_browser.get(f"/p/shop/inbox/{poison.pk}").content.decode()
    assert "&lt;script&gt;alert(1)" in raw
    assert "<script>alert" not in raw
    back = reviewer_browser.post(f"/p/shop/inbox/{poison.pk}/retry", {"kind": "set_aside"})
    assert back["Location"] == "/p/shop/inbox?kind=set_aside"


def test_a_call_is_moved_into_a_trajectory(reviewer_browser: Client, key: ApiKey, trajectory: Trajectory) -> None:
    call = ExchangeFactory.create(key=key, **IN_TOKENS)
    fold_pending()
    assert "names no trajectory" in reviewer_browser.get("/p/shop/inbox?kind=unassigned").content.decode()
    moved = reviewer_browser.post(f"/p/shop/inbox/{call.pk}/assign", {"trajectory": trajectory.pk})
    assert moved["Location"] == f"/p/shop/trajectories/{trajectory.pk}"
    assert Step.objects.get(exchange_id=call.pk).trajectory_id == trajectory.pk
    assert reviewer_browser.post(f"/p/shop/inbox/{call.pk}/assign", {"trajectory": "x"}).status_code == 409


def test_a_call_that_was_moved_in_is_moved_back(
    reviewer_browser: Client, viewer_browser: Client, key: ApiKey, trajectory: Trajectory
) -> None:
    call = ExchangeFactory.create(key=key, **IN_TOKENS)
    fold_pending()
    back = f"/p/shop/inbox/{call.pk}/take-out"
    moved = reviewer_browser.post(f"/p/shop/inbox/{call.pk}/assign", {"trajectory": trajectory.pk}, follow=True)
    assert f'<form method="post" action="{back}">' in moved.content.decode()  # beside the word that it is moved
    assert f'action="{back}"' in reviewer_browser.get("/p/shop/inbox?kind=moved_in").content.decode()
    assert f'action="{back}"' not in viewer_browser.get("/p/shop/inbox?kind=moved_in").content.decode()
    assert viewer_browser.post(back).status_code == 403
    beside = ProjectFactory.create(team=trajectory.project.team, slug="beside")
    assert reviewer_browser.post(back.replace("/shop/", f"/{beside.slug}/")).status_code == 404
    assert reviewer_browser.post(back)["Location"] == "/p/shop/inbox?kind=unassigned"
    assert not Step.objects.filter(exchange_id=call.pk).exists()
    assert "names no trajectory" in reviewer_browser.get("/p/shop/inbox?kind=unassigned").content.decode()
    assert reviewer_browser.post(back).status_code == 404


def test_a_side_call_is_moved_into_the_conversation(reviewer_browser: Client, trajectory: Trajectory) -> None:
    side = StepFactory.create(trajectory=trajectory, index=1, side_call="title")
    assert "Into the conversation" in reviewer_browser.get("/p/shop/inbox?kind=side").content.decode()
    moved = reviewer_browser.post(f"/p/shop/trajectories/{trajectory.pk}/steps/{side.pk}/side-call", {"side": "0"})
    assert moved["Location"] == f"/p/shop/trajectories/{trajectory.pk}?step=1#step-1"
    side.refresh_from_db()
    assert side.side_call == ""


def test_a_step_is_moved_out_on_its_trajectorys_page_and_in_again(
    reviewer_browser: Client, viewer_browser: Client, trajectory: Trajectory
) -> None:
    page = f"/p/shop/trajectories/{trajectory.pk}"
    address = f"{page}/steps/{trajectory.steps.get().pk}/side-call"
    html = reviewer_browser.get(page).content.decode()
    assert f'action="{address}"' in html
    assert ">Move out</button>" in html
    reviewer_browser.post(address, {"side": "1"})
    assert ">Move in</button>" in reviewer_browser.get(page).content.decode()
    assert viewer_browser.post(address, {"side": "0"}).status_code == 403
    reviewer_browser.post(address, {"side": "0"})
    assert trajectory.steps.get().side_call == ""


def test_an_empty_inbox_says_so(viewer_browser: Client, trajectory: Trajectory) -> None:
    assert "Nothing waits here" in viewer_browser.get("/p/shop/inbox").content.decode()
    assert viewer_browser.get("/p/shop/inbox?kind=lost").status_code == 400
