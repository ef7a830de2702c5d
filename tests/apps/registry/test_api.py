"""Policies, versions, aliases and engines over REST."""

from collections.abc import Callable

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import AuditEvent, User
from apps.core.ids import new_id
from apps.registry.models import AliasName, Engine, Policy, Version
from apps.registry.refresh import refresh_version
from apps.registry.services import mark_ready
from tests.apps.registry.conftest import Publish, number_of
from tests.factories.registry import AliasFactory, PolicyFactory, VersionFactory
from tests.fakes.adapter_engine import FakeEngine

ClientOf = Callable[[User], APIClient]

READS = ["/api/v1/policy", "/api/v1/versions", "/api/v1/engines"]
LIVE = "/api/v1/aliases/live"
SPLIT = "/api/v1/split"


@pytest.fixture
def version(publish: Publish) -> Version:
    version = publish()
    mark_ready(version, verification={"mean_abs_diff": 0.0})
    return version


def test_the_policy_shows_its_aliases(key_client: APIClient, policy: Policy, version: Version) -> None:
    body = key_client.get("/api/v1/policy").json()
    assert (body["slug"], body["base_model"]) == ("shop", "tiny")
    assert {name: alias["number"] for name, alias in body["aliases"].items()} == {"live": 1, "previous": 0}


def test_versions_are_paged_newest_first(key_client: APIClient, version: Version, publish: Publish) -> None:
    publish()
    first = key_client.get("/api/v1/versions?limit=2").json()
    assert [item["number"] for item in first["items"]] == [2, 1]
    second = key_client.get(f"/api/v1/versions?limit=2&before={first['next_before']}").json()
    assert [(item["number"], item["aliases"]) for item in second["items"]] == [(0, ["previous"])]
    assert second["next_before"] is None


def test_a_version_shows_lineage_and_verification_but_no_probe(key_client: APIClient, version: Version) -> None:
    body = key_client.get(f"/api/v1/versions/{version.id}").json()
    assert body["lineage"] == {"base_model": "tiny", "run_id": "run_x", "step": 1}
    assert body["verification"] == {"mean_abs_diff": 0.0}
    assert body["parent"] == version.parent_id
    assert "probe" not in body


def test_engines_show_health_and_loaded_versions_but_no_address(
    key_client: APIClient, engine: Engine, publish: Publish
) -> None:
    refresh_version(version := publish())
    (item,) = key_client.get("/api/v1/engines").json()["items"]
    assert (item["id"], item["state"], item["versions"]) == (engine.id, "up", [version.id])
    assert engine.base_url not in str(item)


def test_a_trainer_rolls_back(
    client_of: ClientOf, trainer: User, policy: Policy, engine: Engine, fake_engine: FakeEngine, publish: Publish
) -> None:
    first, second = publish(), publish()
    for version in (first, second):
        refresh_version(version)
    answer = client_of(trainer).post(f"{LIVE}?project=shop", {"version": first.id})
    assert answer.status_code == 200, answer.json()
    assert answer.json()["aliases"]["live"]["number"] == 1
    assert number_of(policy, AliasName.PREVIOUS) == 2


def test_a_viewer_reads_but_does_not_switch(client_of: ClientOf, viewer: User, version: Version) -> None:
    client = client_of(viewer)
    for path in READS:
        assert client.get(f"{path}?project=shop").status_code == 200
    assert client.post(f"{LIVE}?project=shop", {"version": version.id}).status_code == 403


def test_an_agents_key_does_not_switch(key_client: APIClient, version: Version) -> None:
    assert key_client.post(LIVE, {"version": version.id}).status_code == 403


def test_nobody_gets_in_without_a_key(anonymous_client: APIClient, version: Version) -> None:
    for path in [*READS, f"/api/v1/versions/{version.id}"]:
        assert anonymous_client.get(path).status_code == 401
    assert anonymous_client.post(LIVE, {"version": version.id}).status_code == 401


def test_another_teams_version_looks_like_a_missing_one(
    other_client: APIClient, client_of: ClientOf, stranger: User, version: Version
) -> None:
    for client in (other_client, client_of(stranger)):
        theirs = client.get(f"/api/v1/versions/{version.id}")
        none = client.get(f"/api/v1/versions/{new_id('ver')}")
        assert (theirs.status_code, theirs.json()) == (404, none.json())
    for path in READS:
        assert client_of(stranger).get(f"{path}?project=shop").status_code == 404


def test_another_teams_version_cannot_be_put_live(
    manage_client: APIClient, policy: Policy, version: Version, other_project: object
) -> None:
    foreign = VersionFactory.create(policy=PolicyFactory.create(project=other_project))
    assert manage_client.post(LIVE, {"version": foreign.id}).status_code == 404


@pytest.mark.parametrize("body", [{}, {"version": ""}, {"version": "x" * 40}, {"versoin": "ver_x"}])
def test_a_bad_body_is_refused(manage_client: APIClient, policy: Policy, body: dict[str, str]) -> None:
    assert manage_client.post(LIVE, body).status_code == 400


def test_missing_things_are_missing(manage_client: APIClient, policy: Policy) -> None:
    assert manage_client.post(LIVE, {"version": new_id("ver")}).status_code == 404
    assert manage_client.post("/api/v1/aliases/newest", {"version": new_id("ver")}).status_code == 404
    for version_id in ("ver_x", "x", "ver_%00"):
        assert manage_client.get(f"/api/v1/versions/{version_id}").status_code == 404


def test_a_project_without_a_policy_says_so(key_client: APIClient) -> None:
    answer = key_client.get("/api/v1/policy")
    assert answer.status_code == 404
    assert "no policy yet" in answer.json()["detail"]


def test_an_unverified_version_cannot_be_put_live(manage_client: APIClient, publish: Publish) -> None:
    assert manage_client.post(LIVE, {"version": publish().id}).status_code == 409


def test_wrong_methods_are_refused(manage_client: APIClient, version: Version) -> None:
    for path in ["/api/v1/policy", "/api/v1/versions", f"/api/v1/versions/{version.id}"]:
        assert manage_client.post(path).status_code == 405
    assert manage_client.get(LIVE).status_code == 405
    assert manage_client.post(SPLIT, {"live": 100}).status_code == 405


def shares_of(policy: Policy) -> dict[str, int]:
    return dict(policy.aliases.filter(live_share__gt=0).values_list("name", "live_share"))


def test_a_trainer_splits_live_and_ends_the_split(manage_client: APIClient, policy: Policy, version: Version) -> None:
    answer = manage_client.put(SPLIT, {"live": 90, "previous": 10})
    assert answer.status_code == 200, answer.json()
    assert {name: alias["live_share"] for name, alias in answer.json()["aliases"].items()} == {
        "live": 90,
        "previous": 10,
    }
    assert shares_of(policy) == {"previous": 10}
    assert AuditEvent.objects.filter(action="live.split", object_id=policy.id).count() == 1

    assert manage_client.put(SPLIT, {"live": 100}).status_code == 200
    assert shares_of(policy) == {}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "live"),
        ({"live": 90, "previous": 9}, "live"),
        ({"live": 90, "previous": 11}, "live"),
        ({"live": 0, "previous": 100}, "live"),
        ({"live": 110, "previous": -10}, "live"),
        ({"live": 90.5, "previous": 9.5}, "live"),
        ({"live": 90, "newest": 10}, "newest"),
    ],
)
def test_shares_that_make_no_sense_are_refused(
    manage_client: APIClient, policy: Policy, version: Version, body: dict[str, float], field: str
) -> None:
    answer = manage_client.put(SPLIT, body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert shares_of(policy) == {}


def test_an_alias_that_names_nothing_takes_no_share(manage_client: APIClient, policy: Policy, version: Version) -> None:
    answer = manage_client.put(SPLIT, {"live": 90, "candidate": 10})
    assert (answer.status_code, answer.json()["field"]) == (409, "candidate")


def test_only_trainers_of_the_team_split(
    key_client: APIClient,
    client_of: ClientOf,
    viewer: User,
    stranger: User,
    anonymous_client: APIClient,
    version: Version,
) -> None:
    body = {"live": 90, "previous": 10}
    assert key_client.put(SPLIT, body).status_code == 403
    assert client_of(viewer).put(f"{SPLIT}?project=shop", body).status_code == 403
    assert client_of(stranger).put(f"{SPLIT}?project=shop", body).status_code == 404
    assert anonymous_client.put(SPLIT, body).status_code == 401
    assert shares_of(version.policy) == {}


CANDIDATE = "/api/v1/aliases/candidate"


@pytest.fixture
def candidate(policy: Policy, version: Version) -> None:
    AliasFactory.create(version=version, name=AliasName.CANDIDATE, live_share=20)


@pytest.mark.usefixtures("candidate")
def test_a_trainer_takes_the_candidate_off(client_of: ClientOf, trainer: User, policy: Policy) -> None:
    client = client_of(trainer)
    assert client.delete(f"{CANDIDATE}?project=shop").status_code == 204
    aliases = client.get("/api/v1/policy?project=shop").json()["aliases"]
    assert (aliases["live"]["live_share"], "candidate" in aliases) == (100, False)
    assert client.delete(f"{CANDIDATE}?project=shop").status_code == 404


@pytest.mark.usefixtures("candidate")
def test_only_the_candidate_can_be_taken_off(manage_client: APIClient) -> None:
    for name, status in {"live": 409, "previous": 409, "newest": 404}.items():
        assert manage_client.delete(f"/api/v1/aliases/{name}").status_code == status


@pytest.mark.usefixtures("candidate")
def test_only_trainers_of_the_team_take_the_candidate_off(
    key_client: APIClient,
    client_of: ClientOf,
    viewer: User,
    stranger: User,
    anonymous_client: APIClient,
    policy: Policy,
) -> None:
    assert key_client.delete(CANDIDATE).status_code == 403
    assert client_of(viewer).delete(f"{CANDIDATE}?project=shop").status_code == 403
    assert client_of(stranger).delete(f"{CANDIDATE}?project=shop").status_code == 404
    assert anonymous_client.delete(CANDIDATE).status_code == 401
    assert number_of(policy, AliasName.CANDIDATE) == 1
