"""Error pages: the way on that a member is offered and a stranger is not, and addresses with a slash too many."""

import pytest
from django.test import Client

from apps.accounts.models import Project
from apps.trajectories.models import Trajectory

HOME = 'href="/p/shop/">Home of the project</a>'
LOST = ("/p/shop/runs/run_0", "/p/shop/no/such/page", "/p/shop/trajectories?state=sleeping")


@pytest.mark.parametrize("address", LOST)
def test_a_member_is_led_home_and_a_stranger_told_nothing(
    viewer_browser: Client, stranger_browser: Client, anonymous_browser: Client, project: Project, address: str
) -> None:
    answer = viewer_browser.get(address)
    assert answer.status_code in {400, 404}
    assert HOME in answer.content.decode()
    for browser in (stranger_browser, anonymous_browser):
        assert "/p/shop/" not in browser.get(address).content.decode()
    missing = [stranger_browser.get(address.replace("shop", "nowhere")), stranger_browser.get(address)]
    assert [HOME in one.content.decode() for one in missing] == [False, False]
    assert missing[0].status_code == missing[1].status_code


def test_a_slash_too_many_leads_to_the_page(viewer_browser: Client, trajectory: Trajectory) -> None:
    for address, to in {
        "/p/shop/trajectories/": "/p/shop/trajectories",
        "/p/shop/trajectories//?q=reward%3Anone&agent=clerk": "/p/shop/trajectories?q=reward%3Anone&agent=clerk",
        f"/p/shop/trajectories/{trajectory.pk}/": f"/p/shop/trajectories/{trajectory.pk}",
        "/login/": "/login",
        "/api/docs/": "/api/docs",
    }.items():
        answer = viewer_browser.get(address)
        assert (answer.status_code, answer.headers.get("Location")) == (301, to)


@pytest.mark.parametrize("address", ["/p/shop/nowhere/", "/nowhere/", "/p/shop/runs/run/no/"])
def test_what_is_nowhere_without_the_slash_either_is_missing(viewer_browser: Client, address: str) -> None:
    assert viewer_browser.get(address).status_code == 404


def test_a_form_is_not_sent_elsewhere(viewer_browser: Client, project: Project) -> None:
    assert viewer_browser.post("/p/shop/trajectories/", {"action": "exclude"}).status_code == 404
