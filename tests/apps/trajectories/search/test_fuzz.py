"""Whatever stands in a search, the list answers: rows, or in words what is wrong with it. Never a fault of ours."""

import json
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from apps.accounts.models import Agent, User
from apps.trajectories.models import Trajectory
from apps.trajectories.search.fields import BREAKS, FIELDS, HAS, IS, LABELS
from apps.trajectories.search.language import OPERATORS
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

odd_values = st.sampled_from(
    [
        *HAS,
        *IS,
        *LABELS,
        *BREAKS,
        *(
            "0",
            "-1",
            "1e400",
            "nan",
            "-inf",
            "9" * 30,
            "1_0",
            "٣",
            "0x1",
            "99999w",
            "0m",
            "none",
            "any",
            "train",
            "%",
            "'",
        ),
        *("0001-01-01", "9999-12-31", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "2026-02-30", "2026-W01-1"),
        *(
            '""',
            '"',
            '"a',
            '"\\"',
            "a,b",
            ",",
            "a,",
            "a" * 3000,
            "\x00",
            "\ud800",
            "\u202e",
            "👍",
            "<script>",
            "traj_x",
        ),
        *("&", "|", "!", "a & b", "a:b", "(", ":*", "\\", "-", "--", "\n", "\t"),
    ]
)
terms = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "--"]),
    st.sampled_from([*FIELDS, *map(str.upper, FIELDS), "", "agnt", "__class__"]),
    st.sampled_from([*OPERATORS, "=", "==", "", "<>", "!="]),
    odd_values | st.text(max_size=20).map(lambda text: f'"{text}"'),
)
searches = st.lists(terms | odd_values | st.text(max_size=30), max_size=5).map(" ".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(q=searches)
def test_a_search_is_answered(q: str, owner_browser: Client, key_client: APIClient, trajectory: Trajectory) -> None:
    asked = urlencode({"q": q.encode("utf-8", "surrogatepass"), "project": "shop"})
    assert key_client.get(f"/api/v1/trajectories?{asked}").status_code in {200, 400, 422}
    assert owner_browser.get(f"/p/shop/trajectories?{asked}").status_code in {200, 400, 422}
    body = json.dumps({"action": "exclude", "q": q})
    answer = key_client.post("/api/v1/bulk-jobs", body, content_type="application/json")
    assert answer.status_code in {202, 400, 403}, answer.content


@pytest.fixture
def owner_browser(owner: User, browser_of: Callable[[User], Client]) -> Client:
    return browser_of(owner)


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    row = TrajectoryFactory.create(agent=agent, title="parcel", reward=0.5)
    StepFactory.create(trajectory=row, index=0)
    return row


def test_a_search_without_end_is_refused_in_a_few_words(key_client: APIClient, owner_browser: Client) -> None:
    asked = f"q={'a' * 20_000}"
    listed, shown = key_client.get(f"/api/v1/trajectories?{asked}"), owner_browser.get(f"/p/shop/trajectories?{asked}")
    started = key_client.post("/api/v1/bulk-jobs", {"action": "exclude", "q": "a" * 1_000_000})
    for answer in (listed, shown, started):
        assert answer.status_code == 400
        assert b"4000 characters" in answer.content
    assert max(len(listed.content), len(started.content)) < 10_000
