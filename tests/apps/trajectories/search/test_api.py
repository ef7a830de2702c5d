"""Search over REST: the list's `q`, with the filters that stand beside it."""

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent
from apps.trajectories.bulk.models import TrajectoryTag
from tests.factories.registry import VersionFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

LIST = "/api/v1/trajectories"


def test_it_finds_by_a_search_and_shows_tags(key_client: APIClient, agent: Agent) -> None:
    found = TrajectoryFactory.create(agent=agent, reward=0.1)
    TrajectoryFactory.create(agent=agent, reward=0.9)
    TrajectoryTag.objects.create(trajectory=found, name="later")
    items = key_client.get(LIST, {"q": "reward<0.3 agent:clerk"}).json()["items"]
    assert [(item["id"], item["tags"]) for item in items] == [(found.id, ["later"])]
    assert key_client.get(LIST, {"q": "reward<0.3", "has_reward": "0"}).json()["items"] == []


def test_it_pages_through_what_a_search_finds(key_client: APIClient, agent: Agent) -> None:
    made = [TrajectoryFactory.create(agent=agent, has_error=index % 2 == 0).id for index in range(6)]
    first = key_client.get(LIST, {"q": "has:error", "limit": "2"}).json()
    assert [item["id"] for item in first["items"]] == [made[4], made[2]]
    rest = key_client.get(LIST, {"q": "has:error", "limit": "2", "before": first["next_before"]}).json()
    assert ([item["id"] for item in rest["items"]], rest["next_before"]) == ([made[0]], None)


def test_it_filters_by_what_broke_a_prefix(key_client: APIClient, agent: Agent) -> None:
    broken, _ = (TrajectoryFactory.create(agent=agent) for _ in range(2))
    StepFactory.create(trajectory=broken, prefix_break="compaction")
    for asked in ({"prefix_break": "compaction"}, {"q": "break:compaction"}):
        assert [item["id"] for item in key_client.get(LIST, asked).json()["items"]] == [broken.id]
    answer = key_client.get(LIST, {"prefix_break": "quake"})
    assert (answer.status_code, answer.json()["field"]) == (400, "prefix_break")


@pytest.mark.parametrize(
    ("asked", "warning"),
    [
        ({"q": "agent:clrk"}, "this project has no agent clrk: do you mean clerk?"),
        ({"agent": "clrk"}, "this project has no agent clrk: do you mean clerk?"),
        ({"q": "version:v9 agent:nobody"}, "this project has no agent nobody; this project has no version v9"),
        ({"q": "version:9007199254740992"}, "this project has no version 9007199254740992"),
        ({"q": "version:v0 agent:clerk"}, ""),
        ({}, ""),
    ],
)
def test_it_tells_of_agents_and_versions_that_the_project_has_not(
    key_client: APIClient, agent: Agent, asked: dict[str, str], warning: str
) -> None:
    VersionFactory.create(policy__project=agent.project)
    assert key_client.get(LIST, asked).json()["warning"] == warning


@pytest.mark.parametrize("q", ["reward<much", "agnt:x", '"open', "a\x00", "x" * 4001])
def test_it_says_where_a_search_is_wrong(key_client: APIClient, agent: Agent, q: str) -> None:
    answer = key_client.get(LIST, {"q": q})
    assert answer.status_code == 400
    assert answer.json()["field"] == "q"


def test_the_place_is_marked(key_client: APIClient, agent: Agent) -> None:
    detail = key_client.get(LIST, {"q": "parcel reward<much"}).json()["detail"]
    assert detail.startswith("q, character 15: reward wants a number, none or any, not 'much'")
    assert detail.endswith("parcel reward<much\n              ^")


def test_another_teams_rows_are_never_found(other_client: APIClient, agent: Agent) -> None:
    TrajectoryFactory.create(agent=agent, reward=0.1)
    assert other_client.get(LIST, {"q": "reward<0.3"}).json()["items"] == []
    assert other_client.get(LIST, {"q": "reward<0.3", "project": "shop"}).status_code == 404
