"""The list's search, its strip of time, saved views, columns: all of it without JavaScript."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import escape
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import Agent, Project, User
from apps.console.queries import trajectories as queries
from apps.console.queries.trajectories import read_strip
from apps.trajectories.bulk.models import TrajectoryTag
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.models import ListLook, SavedView
from apps.trajectories.search.services import Found

AddTrajectory = Callable[..., Trajectory]
LIST = "/p/shop/trajectories"


def titles(html: str, *names: str) -> set[str]:
    return {name for name in names if f">{name}</a>" in html}


def test_a_search_stands_in_the_address(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory(title="good", reward=0.9)
    add_trajectory(title="bad", reward=-1.0)
    response = owner_browser.get(LIST, {"q": "reward<0.3", "agent": "clerk"})
    html = response.content.decode()
    assert titles(html, "good", "bad") == {"bad"}
    assert 'value="reward&lt;0.3 agent:clerk"' in html
    assert "/api/v1/trajectories?q=reward%3C0.3%20agent%3Aclerk" in html


def test_a_wrong_search_is_shown_with_the_place(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory(title="good")
    response = owner_browser.get(LIST, {"q": "parcel reward<much"})
    html = response.content.decode()
    assert response.status_code == 400
    assert "Character 15: reward wants a number, none or any" in html
    assert "parcel reward&lt;much\n              ^" in html
    assert titles(html, "good") == set()


def test_the_strip_counts_and_narrows(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory(title="old", started_at=datetime(2026, 11, 1, 10, 20, tzinfo=UTC))
    add_trajectory(title="new", started_at=datetime(2026, 11, 3, 10, 20, tzinfo=UTC))
    html = owner_browser.get(LIST, {"q": "has:reward from:2026-11-01 -has:reward"}).content.decode()
    assert "<strong>0</strong> found" in html
    strip = read_strip(Trajectory.objects.get(title="old").project, parse_query("from:2026-11-01"))
    assert strip is not None
    assert [bar.n for bar in strip.bars] == [1, 1]
    narrowed = owner_browser.get(LIST, {"q": strip.bars[0].q}).content.decode()
    assert titles(narrowed, "old", "new") == {"old"}
    assert "from%3A2026-11-01T" in owner_browser.get(LIST).content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("span", [timedelta(0), timedelta(minutes=3), timedelta(days=40), timedelta(days=9000)])
def test_the_strip_holds_everything_however_long_the_time(
    project: Project, add_trajectory: AddTrajectory, span: timedelta
) -> None:
    now = timezone.now()
    for part in range(4):
        add_trajectory(started_at=now - span * part / 3)
    strip = read_strip(project, parse_query(""))
    assert strip is not None
    assert (strip.count.n, sum(bar.n for bar in strip.bars)) == (4, 4)
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 for bar in strip.bars)


def test_columns_and_density_are_kept(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory(title="row")
    before = owner_browser.get(LIST).content.decode()
    assert ">Tokens</th>" in before
    assert ">Channel</th>" not in before
    owner_browser.post("/p/shop/look", {"widths": '{"tokens": 5, "channel": 99.6, "smell": 7}'})
    response = owner_browser.post(
        "/p/shop/look", {"column": ["channel", "smell"], "density": "dense", "next": f"{LIST}?q=row"}
    )
    assert (response.status_code, response["Location"]) == (302, f"{LIST}?q=row")
    after = owner_browser.get(LIST).content.decode()
    assert ">Channel</th>" in after
    assert ">Tokens</th>" not in after
    assert 'data-density="dense"' in after
    assert 'data-column="channel" data-width="99"' in after  # and too narrow ones are made readable
    assert ListLook.objects.get().widths == {"channel": 99, "tokens": 40}


@pytest.mark.parametrize("widths", ["", "[", "7", '{"tokens": "wide"}', '{"tokens": 1e999}', '{"tokens": null}'])
def test_odd_widths_are_refused(owner_browser: Client, agent: Agent, widths: str) -> None:
    assert owner_browser.post("/p/shop/look", {"widths": widths}).status_code == 400
    assert not ListLook.objects.exists()


def test_a_slow_search_says_that_it_looks_back_piece_by_piece(
    owner_browser: Client, add_trajectory: AddTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add_trajectory()
    monkeypatch.setattr(queries, "find_page", lambda **_: Found(items=[], next_before=row.pk, is_cut=True))
    html = owner_browser.get(LIST, {"q": "-parcel"}).content.decode()
    assert "Nothing among the newest" in html
    assert f"before={row.pk}" in html


def test_what_is_chosen_or_found_goes_to_the_form_of_an_export(
    trainer_browser: Client, reviewer_browser: Client, add_trajectory: AddTrajectory
) -> None:
    rows = [add_trajectory(title=f"row {number}") for number in range(50)]
    html = trainer_browser.get(LIST, {"q": "reward:none"}).content.decode()
    assert 'href="/p/shop/exports?q=reward%3Anone#new-title"' in html
    choice = {"id": [row.pk for row in rows], "export": "chosen"}
    chosen = trainer_browser.post(LIST, choice)
    form = trainer_browser.get(chosen["Location"]).content.decode()
    assert f"id:{','.join(row.pk for row in rows)}" in form
    assert reviewer_browser.post(LIST, choice).status_code == 403


def test_the_look_leads_nowhere_else(owner_browser: Client, agent: Agent) -> None:
    response = owner_browser.post("/p/shop/look", {"next": "https://elsewhere.example/", "density": "x"})
    assert response["Location"] == LIST


def test_a_view_is_saved_used_deleted_and_brought_back(reviewer_browser: Client, agent: Agent) -> None:
    response = reviewer_browser.post(LIST, {"save_view": "1", "name": " Bad  ones ", "query": "reward<0.3"})
    assert (response.status_code, response["Location"]) == (302, f"{LIST}?q=reward%3C0.3")
    view = SavedView.objects.get()
    assert (view.name, view.query) == ("Bad ones", "reward<0.3")
    assert ">Bad ones</a>" in reviewer_browser.get(LIST).content.decode()
    gone = reviewer_browser.post(f"/p/shop/views/{view.id}/delete", headers={"HX-Request": "true"})
    assert f"/p/shop/views/{view.id}/restore" in gone["HX-Trigger"]
    assert ">Bad ones</a>" not in gone.content.decode()
    assert "Restore “Bad ones”" in reviewer_browser.get(LIST).content.decode()
    reviewer_browser.post(f"/p/shop/views/{view.id}/restore")
    assert ">Bad ones</a>" in reviewer_browser.get(LIST).content.decode()


@pytest.mark.parametrize(
    ("name", "query", "status", "words"),
    [
        ("", "reward<0.3", 400, "1 to 60 characters"),
        ("x" * 61, "", 400, "1 to 60 characters"),
        ("x", "agnt:y", 400, "here is no field"),
        ("taken", "reward<0.3", 409, "hoose another name"),
    ],
)
def test_a_view_that_cannot_be_saved_says_why(
    reviewer_browser: Client, project: Project, name: str, query: str, status: int, words: str
) -> None:
    SavedView.objects.create(project=project, name="taken")
    form = {"save_view": "1", "name": name, "query": query}
    response = reviewer_browser.post(f"{LIST}?{urlencode({'q': query})}", form)
    assert response.status_code == status
    html = response.content.decode()
    assert words in html
    assert f'name="q" id="f-q" value="{escape(query)}"' in html
    assert f'maxlength="60" value="{name}" aria-invalid="true"' in html
    assert SavedView.objects.count() == 1


def test_a_viewer_saves_no_view(viewer_browser: Client, agent: Agent) -> None:
    assert viewer_browser.post(LIST, {"save_view": "1", "name": "x", "query": "reward<0.3"}).status_code == 403


def test_a_view_of_somebody_else_is_theirs(reviewer_browser: Client, project: Project, owner: User) -> None:
    view = SavedView.objects.create(project=project, name="mine", owner=owner)
    response = reviewer_browser.post(f"/p/shop/views/{view.id}/delete")
    assert response.status_code == 403
    assert "owner@example.org" in response.content.decode()


def test_tags_lead_to_their_like(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    TrajectoryTag.objects.create(trajectory=add_trajectory(), name="late refund")
    assert "?q=tag%3A%22late%20refund%22" in owner_browser.get(LIST).content.decode()
