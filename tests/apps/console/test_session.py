"""Logging in and out, projects, themes, short links."""

import re

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.training.models import Run
from apps.trajectories.models import Step, Trajectory
from tests.factories.accounts import PASSWORD


def test_a_person_logs_in_by_e_mail_in_any_case(owner: User, anonymous_browser: Client) -> None:
    response = anonymous_browser.post("/login", {"username": "Owner@Example.org", "password": PASSWORD})
    assert (response.status_code, response["Location"]) == (302, "/")


def test_a_wrong_password_keeps_the_form_and_says_what_to_check(owner: User, anonymous_browser: Client) -> None:
    response = anonymous_browser.post("/login", {"username": owner.email, "password": "wrong"})
    html = response.content.decode()
    assert response.status_code == 200
    assert "capitals count" in html
    assert owner.email in html
    assert re.findall(r'<input type="(\w+)"[^>]* autofocus', html) == ["password"]


def test_login_goes_on_to_the_page_that_was_asked_for(owner: User, anonymous_browser: Client) -> None:
    form = {"username": owner.email, "password": PASSWORD, "next": "/p/shop/runs"}
    assert anonymous_browser.post("/login", form)["Location"] == "/p/shop/runs"


def test_a_part_of_a_page_is_not_replaced_by_the_login(anonymous_browser: Client) -> None:
    """The session ended while a page was open: the next press leads all of it to the log-in, and from there back."""
    asked = {"HX-Request": "true", "HX-Current-URL": "http://testserver/p/shop/trajectories/traj_x?step=3"}
    response = anonymous_browser.post("/p/shop/trajectories/traj_x/labels", {"value": "1"}, headers=asked)
    assert (response.status_code, response.content) == (204, b"")
    assert response["HX-Redirect"] == "/login?next=/p/shop/trajectories/traj_x%3Fstep%3D3"
    asked["HX-Current-URL"] = "https://evil.example/p/shop"
    response = anonymous_browser.post("/p/shop/trajectories/traj_x/labels", {"value": "1"}, headers=asked)
    assert response["HX-Redirect"] == "/login?next=/"


def test_login_goes_on_to_no_other_site(owner: User, anonymous_browser: Client) -> None:
    form = {"username": owner.email, "password": PASSWORD, "next": "https://evil.example/"}
    assert anonymous_browser.post("/login", form)["Location"] == "/"


def test_logging_out_ends_the_session(owner_browser: Client) -> None:
    assert owner_browser.get("/logout").status_code == 405
    owner_browser.post("/logout")
    assert owner_browser.get("/").status_code == 302


def test_the_first_page_lists_the_teams_projects_only(
    owner_browser: Client, project: Project, other_project: Project
) -> None:
    html = owner_browser.get("/").content.decode()
    assert project.name in html
    assert other_project.name not in html


def test_a_person_without_a_team_is_told_whom_to_ask(db: None, anonymous_browser: Client) -> None:
    lonely = User.objects.create_user("lonely@example.org", PASSWORD)
    anonymous_browser.force_login(lonely)
    assert "add lonely@example.org" in anonymous_browser.get("/").content.decode()


@pytest.mark.parametrize(
    ("theme", "painted"), [("dark", "dark"), ("light", "light"), ("system", "system"), ("x", "system")]
)
def test_the_server_paints_the_chosen_theme(theme: str, painted: str, owner_browser: Client) -> None:
    response = owner_browser.post("/theme", {"theme": theme, "next": "/"})
    assert response["Location"] == "/"
    assert f'data-theme="{painted}"' in owner_browser.get("/").content.decode()


def test_choosing_a_theme_leads_to_no_other_site(owner_browser: Client) -> None:
    assert owner_browser.post("/theme", {"theme": "dark", "next": "https://evil.example"})["Location"] == "/"


def test_any_id_is_a_short_link(
    owner_browser: Client, project: Project, key: ApiKey, trajectory: Trajectory, step: Step, run: Run
) -> None:
    there = f"/p/shop/trajectories/{trajectory.id}"
    wanted = {
        project.id: "/p/shop/",
        key.id: "/p/shop/agents/clerk",
        key.agent_id: "/p/shop/agents/clerk",
        trajectory.id: there,
        step.id: f"{there}?step=0#step-0",
        step.exchange_id: f"{there}?step=0#step-0",
        step.response_id: f"{there}?step=0#step-0",
        run.id: f"/p/shop/runs/{run.id}",
        run.policy_id: "/p/shop/models",
        run.start_version_id: "/p/shop/models#v0",
    }
    assert {one: owner_browser.get(f"/x/{one}")["Location"] for one in wanted} == wanted


def test_short_links_tell_strangers_nothing(stranger_browser: Client, trajectory: Trajectory) -> None:
    missing = f"{trajectory.id[:-1]}{'1' if trajectory.id[-1] == '0' else '0'}"
    told = [stranger_browser.get(f"/x/{one}") for one in (trajectory.id, missing)]
    assert [answer.status_code for answer in told] == [404, 404]
    assert all("Nothing that you may see has the id" in answer.content.decode() for answer in told)


def test_a_deleted_trajectory_has_no_short_link(owner_browser: Client, trajectory: Trajectory, step: Step) -> None:
    Trajectory.objects.filter(pk=trajectory.pk).update(deleted_at=timezone.now())
    assert [owner_browser.get(f"/x/{one}").status_code for one in (trajectory.id, step.id)] == [404, 404]
