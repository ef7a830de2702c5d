"""Graders over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.backfilling import fill_backfill
from apps.feedback.graders.kinds import KINDS
from apps.feedback.graders.models import DryRun, Grader, WorkState
from apps.feedback.graders.running import grade_due
from apps.feedback.graders.trying import run_dry_run
from apps.trajectories.bulk.running import run_job
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion, grade_all
from tests.fakes.webhook import FakeWebhook

pytestmark = pytest.mark.django_db

URL = "/api/v1/graders"
BODY = {"name": "no-sorry", "kind": "regex", "settings": {"pattern": "sorry", "must_match": False}}
Login = Callable[[User], APIClient]


def test_the_kinds_tell_their_settings(key_client: APIClient) -> None:
    shown = {item["name"]: item for item in key_client.get("/api/v1/grader-kinds").json()["items"]}
    assert shown.keys() == KINDS.keys()
    assert shown["next_state"]["source"] == "next_state"
    assert "template" in shown["judge"]["settings"]["properties"]


def test_from_the_first_version_to_labels(manage_client: APIClient, make_trajectory: MakeTrajectory) -> None:
    trajectory = make_trajectory("sorry")
    made = manage_client.post(URL, BODY)
    assert (made.status_code, made.json()["live"], made.json()["secret"]) == (201, None, "")
    version = f"{URL}/{made.json()['id']}/versions/1"
    assert manage_client.post(f"{version}/switch-on").status_code == 409
    begun = manage_client.post(f"{version}/dry-runs", {"n": 5})
    assert (begun.status_code, begun.json()["state"]) == (202, "queued")
    run_dry_run(begun.json()["id"])
    shown = manage_client.get(f"/api/v1/dry-runs/{begun.json()['id']}").json()
    [result] = shown["results"]
    assert (shown["state"], result["trajectory"], result["value"], result["people"]) == (
        "done",
        trajectory.pk,
        -1,
        None,
    )
    assert manage_client.post(f"{version}/switch-on").json()["live"] == 1
    backfill = manage_client.post(f"{version}/backfills", {})
    assert (backfill.status_code, backfill.json()["progress"]["n_total"]) == (202, 0)
    fill_backfill(backfill.json()["id"])
    assert grade_due(made.json()["version"]["id"])
    address = f"/api/v1/backfills/{backfill.json()['id']}"
    assert manage_client.get(address).json()["progress"]["n_graded"] == 1
    assert manage_client.post(f"{address}/cancel").json()["state"] == "cancelled"
    assert manage_client.post(f"{address}/cancel").status_code == 409
    [label] = manage_client.get(f"/api/v1/trajectories/{trajectory.pk}/labels").json()["items"]
    assert (label["author"], label["source"], label["value"]) == ("no-sorry@v1", "rule", -1)
    assert manage_client.get(f"{version}/agreement").json()["n"] == 0
    assert manage_client.post(f"{URL}/{made.json()['id']}/switch-off").json()["live"] is None


def test_what_it_said_is_taken_back_in_a_job(
    manage_client: APIClient, make_trajectory: MakeTrajectory, make_version: MakeVersion
) -> None:
    trajectory = make_trajectory("x")
    version = make_version("regex", settings={"pattern": "x"})
    address = f"{URL}/{version.grader_id}/take-back"
    assert manage_client.post(address).status_code == 409
    grade_all(version)
    begun = manage_client.post(address)
    assert (begun.status_code, begun.json()["action"], begun.json()["query"]) == (202, "take-back", "grader:grader")
    run_job(begun.json()["id"], actions=ACTIONS)
    labels = f"/api/v1/trajectories/{trajectory.pk}/labels"
    assert [label["is_undo"] for label in manage_client.get(labels).json()["items"]] == [False, True]
    assert manage_client.get(address).status_code == 405


def test_another_version_is_listed_first(manage_client: APIClient) -> None:
    grader = manage_client.post(URL, BODY).json()["id"]
    answer = manage_client.post(f"{URL}/{grader}/versions", {"settings": {"pattern": "x"}, "sample": 0.5})
    assert (answer.status_code, answer.json()["number"], answer.json()["sample"]) == (201, 2, 0.5)
    listed = manage_client.get(f"{URL}/{grader}/versions").json()["items"]
    assert [item["number"] for item in listed] == [2, 1]
    assert [item["name"] for item in manage_client.get(URL).json()["items"]] == ["no-sorry"]
    assert manage_client.get(f"{URL}/{grader}").json()["kind"] == "regex"


def test_a_webhooks_secret_is_shown_once(manage_client: APIClient, webhook: FakeWebhook) -> None:
    body = {"name": "hook", "kind": "webhook", "settings": {"url": webhook.url}}
    made = manage_client.post(URL, body).json()
    assert made["secret"].startswith("clawhook-")
    assert "secret" not in manage_client.get(f"{URL}/{made['id']}").json()
    renewed = manage_client.post(f"{URL}/{made['id']}/secret")
    assert (renewed.status_code, renewed.json()["secret"] != made["secret"]) == (201, True)
    assert manage_client.post(f"{URL}/{manage_client.post(URL, BODY).json()['id']}/secret").status_code == 409


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "oracle"}, "kind"),
        ({"name": "A B"}, "name"),
        ({"settings": {"pattern": "("}}, "settings.pattern"),
        ({"settings": []}, "settings"),
        ({"field": "clarity"}, "field"),
        ({"query": "reward:good"}, "q"),
        ({"sample": 2}, "sample"),
        ({"sample": 10**400}, "sample"),
        ({"settings": {"pattern": "x", "passed": 10**400}}, "settings.passed"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_body_is_refused(manage_client: APIClient, change: dict[str, Any], field: str) -> None:
    answer = manage_client.post(URL, {**BODY, **change})
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert not Grader.objects.exists()


def test_all_that_is_wrong_is_told_by_field(manage_client: APIClient) -> None:
    grader = manage_client.post(URL, BODY).json()["id"]
    wrong = {"settings": {"pattern": "(", "colour": "red"}, "field": "clarity", "query": "reward:good", "sample": 2}
    told = manage_client.post(f"{URL}/{grader}/versions", wrong)
    settings = {"settings.pattern", "settings.colour"}
    assert (told.status_code, set(told.json()["errors"])) == (400, settings | {"field", "q", "sample"})
    told = manage_client.post(URL, {**BODY, **wrong})
    assert (told.status_code, set(told.json()["errors"])) == (400, settings | {"name", "field", "q", "sample"})
    told = manage_client.post(URL, BODY)
    assert (told.status_code, set(told.json()["errors"])) == (409, {"name"})


@pytest.mark.parametrize("n", [0, 51, "x"])
def test_a_dry_run_is_a_sample(manage_client: APIClient, make_version: MakeVersion, n: object) -> None:
    version = make_version("regex", settings={"pattern": "x"}, tried=False)
    assert manage_client.post(f"{URL}/{version.grader_id}/versions/1/dry-runs", {"n": n}).status_code == 400
    assert not DryRun.objects.exists()


def test_who_may(
    client_of: Login,
    key_client: APIClient,
    other_client: APIClient,
    anonymous_client: APIClient,
    mate: User,
    stranger: User,
    make_version: MakeVersion,
) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    address = f"{URL}/{version.grader_id}"
    dry_run = DryRun.objects.create(version=version, n_wanted=1, state=WorkState.DONE)
    posts = [f"{address}/versions", f"{address}/switch-off", f"{address}/secret"]
    posts += [f"{address}/archive", f"{address}/restore", f"{address}/take-back"]
    posts += [f"{address}/versions/1/{act}" for act in ("switch-on", "dry-runs", "backfills")]
    gets = [address, f"{address}/versions", f"{address}/versions/1/agreement", f"/api/v1/dry-runs/{dry_run.pk}"]
    body = {"settings": {"pattern": "y"}}
    for url in posts:
        sent = body if url.endswith("versions") else {}
        assert anonymous_client.post(url, sent).status_code == 401
        assert key_client.post(url, sent).status_code == 403
        for client in (other_client, client_of(stranger)):
            assert client.post(url, sent).status_code == 404
    for url in gets:
        assert anonymous_client.get(url).status_code == 401
        assert client_of(mate).get(url).status_code == 200
        assert client_of(stranger).get(url).status_code == 404
        assert client_of(mate).delete(url).status_code == 405
    assert client_of(mate).post(f"{URL}?project=shop", BODY).status_code == 403
    assert client_of(stranger).get(f"{URL}?project=shop").status_code == 404


def test_what_is_missing_is_404(manage_client: APIClient, make_version: MakeVersion) -> None:
    version = make_version("regex", settings={"pattern": "x"})
    for url in (
        f"{URL}/{new_id('grdr')}",
        f"{URL}/nonsense",
        f"{URL}/{version.grader_id}/versions/9/agreement",
        f"/api/v1/dry-runs/{new_id('dryr')}",
        f"/api/v1/backfills/{new_id('bkfl')}",
    ):
        assert manage_client.get(url).status_code == 404
    for missing in (new_id("grdr"), "nonsense"):
        assert manage_client.post(f"{URL}/{missing}/take-back").status_code == 404
