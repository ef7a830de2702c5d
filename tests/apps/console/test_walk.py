"""Each page of the table of addresses, for each role, in a project in use and in an empty one."""

import re

import pytest
from django.test import Client
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.training.models import Batch, BatchState, Run
from apps.trajectories.models import Trajectory
from tests.apps.console.places import TRAINERS, fill_places, list_places

pytestmark = pytest.mark.django_db
POSTED = 405
EMPTY = (
    *("", "agents", "trajectories", "jobs", "inbox", "review", "review/new", "rewards", "rewards/schema"),
    *("graders/new", "datasets", "exports", "imports", "runs", "runs/new", "models", "teachers", "people"),
)


@pytest.fixture
def places(project: Project, owner: User, key: ApiKey, trajectory: Trajectory, run: Run) -> dict[str, str]:
    Batch.objects.create(run=run, step=1, state=BatchState.TRAINED, n_samples=2, trained_at=timezone.now())
    return list_places(fill_places(project=project, owner=owner, trajectory=trajectory, run_id=run.pk, key=key))


def read_outline(html: str) -> tuple[str, int, int, int]:
    """The title, and how many first headings, main parts and skip links there are."""
    title = re.findall(r"<title>\s*(.*?)\s*</title>", html, re.DOTALL)
    return title[0] if title else "", html.count("<h1"), html.count("<main"), html.count('class="skip"')


@pytest.mark.parametrize("role", ["owner", "trainer", "reviewer", "viewer"])
def test_every_page_has_a_title_and_a_heading_and_says_whom_to_ask(
    role: str, places: dict[str, str], request: pytest.FixtureRequest
) -> None:
    browser: Client = request.getfixturevalue(f"{role}_browser")
    titles: dict[str, str] = {}
    for name, address in places.items():
        answer = browser.get(address)
        if answer.status_code in {POSTED, 302}:
            continue
        html = answer.content.decode()
        title, *counts = read_outline(html)
        assert title, name
        assert counts[:2] == [1, 1], name
        if answer.status_code == 403:
            assert role == "viewer" or (role == "reviewer" and name in TRAINERS), name
            assert 'href="/p/shop/">Home of the project</a>' in html, name
            continue
        assert answer.status_code == 200, (name, address)
        assert counts[2] == 1, name
        titles[name] = title
    assert len(titles) > 35 or role == "viewer"


@pytest.mark.parametrize("role", ["owner", "trainer", "reviewer", "viewer"])
def test_an_empty_project_has_all_its_pages(role: str, project: Project, request: pytest.FixtureRequest) -> None:
    browser: Client = request.getfixturevalue(f"{role}_browser")
    for name in EMPTY:
        answer = browser.get(f"/p/shop/{name}")
        assert answer.status_code == (403 if role in {"reviewer", "viewer"} and name in {"review/new"} else 200), name
        assert read_outline(answer.content.decode())[1] == 1, name
