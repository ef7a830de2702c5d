"""The reference system's faults in lists and pages; docs/agents/claw-r1.md has the table."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from apps.accounts.models import Agent
from apps.trajectories.models import Trajectory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

AddTrajectory = Callable[..., Trajectory]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
API = "/api/v1/trajectories"


def count_queries(client: APIClient | Client, url: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200
    return len(queries)


@pytest.mark.parametrize("url", [f"{API}?limit=20", f"{API}?limit=20&has_reward=true"])
def test_fault_11_a_list_costs_the_same_however_large_the_pool_is(
    key_client: APIClient, add_trajectory: AddTrajectory, url: str
) -> None:
    add_trajectory(reward=1.0)
    count_queries(key_client, url)  # the first with a key also writes down that it is used
    few = count_queries(key_client, url)
    for _ in range(60):
        row = add_trajectory(reward=1.0)
        StepFactory.create(trajectory=row, index=1)
    assert count_queries(key_client, url) == few
    page = key_client.get(url).json()
    assert len(page["items"]) == 20
    assert all("steps" not in item for item in page["items"])


def test_fault_11_pages_follow_a_key_and_never_count(key_client: APIClient, agent: Agent) -> None:
    rows = [TrajectoryFactory.create(agent=agent) for _ in range(7)]
    with CaptureQueriesContext(connection) as queries:
        page = key_client.get(API, {"limit": 3}).json()
    assert page["next_before"] == rows[4].id
    asked = [query["sql"] for query in queries if "trajectories_trajectory" in query["sql"]]
    assert not [sql for sql in asked if "COUNT(" in sql or "OFFSET" in sql]
    assert [item["id"] for item in key_client.get(API, {"limit": "3", "before": str(rows[4].id)}).json()["items"]] == [
        row.id for row in (rows[3], rows[2], rows[1])
    ]


def test_fault_11_the_console_asks_no_more_for_many_than_for_few(
    owner_browser: Client, add_trajectory: AddTrajectory
) -> None:
    for _ in range(3):
        add_trajectory()
    few = count_queries(owner_browser, "/p/shop/trajectories")
    for _ in range(40):
        add_trajectory()
    assert count_queries(owner_browser, "/p/shop/trajectories") == few


def test_fault_12_what_agents_say_of_themselves_is_text_on_every_page(
    owner_browser: Client, key_client: APIClient, add_trajectory: AddTrajectory
) -> None:
    words = {"metadata": {HOSTILE: HOSTILE}, "group": HOSTILE[:100], "session_key": HOSTILE}
    row = add_trajectory(title=HOSTILE, state="open", completed_at=None, **words)
    step = {
        "prompt_ids": [1],
        "response_ids": [2],
        "client_step_id": HOSTILE,
        "text": HOSTILE,
        "metadata": {"a": HOSTILE},
    }
    assert key_client.post(f"{API}/{row.id}/steps", {"steps": [step]}).status_code == 201
    for url in ("/p/shop/trajectories", f"/p/shop/trajectories/{row.id}"):
        html = owner_browser.get(url).content.decode()
        assert "<script>alert(1)" not in html
        assert "<img src=x" not in html


@pytest.mark.parametrize("url", [API, "/api/schema", "/p/shop/trajectories"])
def test_fault_12_no_other_origin_may_read_an_answer(
    key_client: APIClient, owner_browser: Client, add_trajectory: AddTrajectory, url: str
) -> None:
    add_trajectory()
    client = key_client if url.startswith("/api") else owner_browser
    for method in ("get", "options"):
        answer = getattr(client, method)(url, headers={"Origin": "https://evil.example"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


def test_fault_12_pages_run_no_script_but_our_own(owner_browser: Client, add_trajectory: AddTrajectory) -> None:
    add_trajectory()
    policy = owner_browser.get("/p/shop/trajectories").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-inline" not in policy
