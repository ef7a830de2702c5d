"""Every address: who gets in, who is told nothing, and which methods it knows."""

import pytest
from django.test import Client

from apps.accounts.models import ApiKey
from apps.training.models import Run
from apps.trajectories.models import Step, Trajectory

PAGES = (
    "/p/shop/",
    "/p/shop/people",
    "/p/shop/agents",
    "/p/shop/agents/clerk",
    "/p/shop/agents/clerk/keys/{key}/first-call",
    "/p/shop/agents/clerk/policies",
    "/p/shop/trajectories",
    "/p/shop/jobs",
    "/p/shop/inbox",
    "/p/shop/trajectories/{trajectory}",
    "/p/shop/trajectories/{trajectory}/steps/{step}",
    "/p/shop/runs",
    "/p/shop/runs/new",
    "/p/shop/runs/{run}",
    "/p/shop/models",
    "/p/shop/teachers",
)
OWNER, TRAINER, REVIEWER, VIEWER = "owner", "trainer", "reviewer", "viewer"
CHANGES = (
    ("/p/shop/people", OWNER),
    ("/p/shop/people/user_00000000000000000000000000/role", OWNER),
    ("/p/shop/people/user_00000000000000000000000000/remove", OWNER),
    ("/p/shop/agents", OWNER),
    ("/p/shop/agents/clerk/keys", OWNER),
    ("/p/shop/agents/clerk/keys/{key}/off", OWNER),
    ("/p/shop/agents/clerk/capture", OWNER),
    ("/p/shop/agents/clerk/limits/{key}", OWNER),
    ("/p/shop/agents/clerk/limits/project", OWNER),
    ("/p/shop/agents/clerk/limits/team", OWNER),
    ("/p/shop/look", VIEWER),
    ("/p/shop/trajectories", VIEWER),
    ("/p/shop/inbox/exch_00000000000000000000000000/retry", REVIEWER),
    ("/p/shop/inbox/exch_00000000000000000000000000/assign", REVIEWER),
    ("/p/shop/inbox/exch_00000000000000000000000000/take-out", REVIEWER),
    ("/p/shop/trajectories/{trajectory}/steps/{step}/side-call", REVIEWER),
    ("/p/shop/views/view_00000000000000000000000000/delete", REVIEWER),
    ("/p/shop/views/view_00000000000000000000000000/restore", REVIEWER),
    ("/p/shop/trajectories/{trajectory}/labels", REVIEWER),
    ("/p/shop/trajectories/{trajectory}/exclusion", REVIEWER),
    ("/p/shop/trajectories/{trajectory}/complete", REVIEWER),
    ("/p/shop/labels/labl_00000000000000000000000000/take-back", REVIEWER),
    ("/p/shop/labels/labl_00000000000000000000000000/undo", REVIEWER),
    ("/p/shop/labels/labl_00000000000000000000000000/unsay/undo", REVIEWER),
    ("/p/shop/preferences/pref_00000000000000000000000000/undo", REVIEWER),
    ("/p/shop/runs/new", TRAINER),
    ("/p/shop/runs/{run}/cancel", TRAINER),
    ("/p/shop/runs/{run}/resume", TRAINER),
    ("/p/shop/models/0/promote", TRAINER),
    ("/p/shop/models/0/candidate", TRAINER),
    ("/p/shop/models/candidate/off", TRAINER),
    ("/p/shop/models/roll-back", TRAINER),
    ("/p/shop/models/split", TRAINER),
    ("/p/shop/teachers/add", OWNER),
    ("/p/shop/teachers/tchr_00000000000000000000000000/remove", OWNER),
    ("/p/shop/providers/add", OWNER),
    ("/p/shop/providers/engn_00000000000000000000000000/test", OWNER),
    ("/p/shop/providers/engn_00000000000000000000000000/credential", OWNER),
    ("/p/shop/providers/engn_00000000000000000000000000/rest", OWNER),
    ("/p/shop/providers/engn_00000000000000000000000000/remove", OWNER),
)
FORMS = {"/p/shop/people", "/p/shop/agents", "/p/shop/trajectories", "/p/shop/runs/new"}
ONLY_POST = [address for address, _ in CHANGES if address not in PAGES]


@pytest.fixture
def ids(key: ApiKey, trajectory: Trajectory, step: Step, run: Run) -> dict[str, str]:
    return {"key": key.id, "trajectory": trajectory.id, "step": step.id, "run": run.id}


@pytest.mark.parametrize("address", PAGES)
def test_members_see_the_page(address: str, ids: dict[str, str], viewer_browser: Client) -> None:
    response = viewer_browser.get(address.format(**ids))
    assert response.status_code == 200
    assert "default-src 'self'" in response["Content-Security-Policy"]
    assert response["X-Request-Id"].startswith("req_")
    html = response.content.decode()
    assert " style=" not in html
    assert "<script>" not in html


@pytest.mark.parametrize("address", PAGES)
def test_one_must_log_in(address: str, ids: dict[str, str], anonymous_browser: Client) -> None:
    response = anonymous_browser.get(address.format(**ids))
    assert response.status_code == 302
    assert response["Location"].startswith("/login?next=/p/shop/")


@pytest.mark.parametrize("address", PAGES)
def test_another_team_is_told_nothing(address: str, ids: dict[str, str], stranger_browser: Client) -> None:
    response = stranger_browser.get(address.format(**ids))
    assert response.status_code == 404
    assert "Shop" not in response.content.decode()


@pytest.mark.parametrize(("address", "_role"), CHANGES)
def test_changes_need_a_login_and_the_team(
    address: str, _role: str, ids: dict[str, str], anonymous_browser: Client, stranger_browser: Client
) -> None:
    assert anonymous_browser.post(address.format(**ids)).status_code == 302
    assert stranger_browser.post(address.format(**ids)).status_code == 404


@pytest.mark.parametrize(("address", "role"), CHANGES)
def test_changes_need_the_role(
    address: str,
    role: str,
    ids: dict[str, str],
    viewer_browser: Client,
    reviewer_browser: Client,
    trainer_browser: Client,
) -> None:
    too_small = {
        VIEWER: [],
        REVIEWER: [viewer_browser],
        TRAINER: [viewer_browser, reviewer_browser],
        OWNER: [trainer_browser],
    }
    for browser in too_small[role]:
        response = browser.post(address.format(**ids))
        assert response.status_code == 403
        assert role in response.content.decode()


@pytest.mark.parametrize("address", ONLY_POST)
def test_changes_cannot_be_linked_to(address: str, ids: dict[str, str], owner_browser: Client) -> None:
    assert owner_browser.get(address.format(**ids)).status_code == 405


@pytest.mark.parametrize("address", [page for page in PAGES if page not in FORMS])
def test_pages_take_no_post(address: str, ids: dict[str, str], owner_browser: Client) -> None:
    assert owner_browser.post(address.format(**ids)).status_code == 405


@pytest.mark.parametrize(
    "address",
    [
        "/p/shop/agents/nobody",
        "/p/shop/agents/nobody/policies",
        "/p/shop/trajectories/traj_00000000000000000000000000",
        "/p/shop/trajectories/{trajectory}/steps/step_00000000000000000000000000",
        "/p/shop/trajectories/{trajectory}/steps/99",
        "/p/shop/runs/run_00000000000000000000000000",
        "/p/shop/runs/{run}/batches/7",
        "/p/shop/agents/clerk/keys/key_00000000000000000000000000/first-call",
        "/p/nowhere/",
        "/x/traj_00000000000000000000000000",
        "/x/nonsense",
        "/p/shop/trajectories/%00",
        "/p/shop/trajectories/{trajectory}/steps/%00",
        "/p/shop/runs/%00",
        "/p/shop/runs/{run}/batches/99999999999999999999",
        "/p/shop/runs/new?from=%00",
        "/p/shop/agents/clerk/keys/%00/first-call",
        "/nowhere",
    ],
)
def test_what_is_not_there_is_a_page_in_words(address: str, ids: dict[str, str], owner_browser: Client) -> None:
    response = owner_browser.get(address.format(**ids))
    assert response.status_code == 404
    assert "Request id" in response.content.decode()


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/p/shop/trajectories?before=%00", 400),
        ("/p/shop/trajectories?agent=%00", 400),
        ("/p/shop/runs?before=%00", 400),
        ("/p/shop/trajectories/{trajectory}/diff?with=%00", 404),
        ("/p/shop/runs/new?selection.agent=%00", 200),  # the form says what is wrong
        ("/p/shop/runs/new?selection.since=0001-01-01T00:00:00%2B23:00", 200),
    ],
)
def test_what_postgres_cannot_look_for_is_refused_in_words(
    address: str, status: int, ids: dict[str, str], owner_browser: Client
) -> None:
    assert owner_browser.get(address.format(**ids)).status_code == status


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("/p/shop/trajectories/{trajectory}/say", {"step": "\x00", "words": "x"}),
        ("/p/shop/trajectories/{trajectory}/labels", {"step": "step_\x00", "value": "1"}),
        ("/p/shop/rewards/tokens", {"agent": "\x00"}),
        ("/p/shop/people/%00/remove", {}),
    ],
)
def test_nor_does_a_form_make_it_look(
    address: str, form: dict[str, str], ids: dict[str, str], owner_browser: Client
) -> None:
    assert owner_browser.post(address.format(**ids), form).status_code in {400, 404}


def test_a_form_without_its_token_is_refused_in_words(trajectory: Trajectory, owner_browser: Client) -> None:
    owner_browser.handler.enforce_csrf_checks = True
    response = owner_browser.post(f"/p/shop/trajectories/{trajectory.id}/labels", {"value": "1"})
    assert response.status_code == 403
    assert "reload" in response.content.decode()


@pytest.mark.parametrize(
    ("address", "content_type"), [("/login", "text/html; charset=utf-8"), ("/api/v1/runs", "application/problem+json")]
)
def test_a_host_name_that_is_not_allowed_is_told_how_to_be(
    address: str, content_type: str, anonymous_browser: Client
) -> None:
    response = anonymous_browser.get(address, headers={"host": "claw.example"})
    assert (response.status_code, response["Content-Type"]) == (400, content_type)
    words = response.content.decode()
    assert "CLAW_ALLOWED_HOSTS" in words
    assert "Traceback" not in words


def test_an_unknown_api_address_answers_in_json(anonymous_browser: Client) -> None:
    response = anonymous_browser.get("/api/v1/nowhere")
    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["request_id"] == response["X-Request-Id"]
